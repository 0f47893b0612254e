//! The cluster's network: a bridge to which the control plane and every node are connected.

use anyhow::Result;

use crate::tools::shell;

/// The control plane's address.
pub(crate) const PLANE: &str = "10.77.0.1";
/// The Services' addresses; the API server has the first.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The API server's Service.
pub(crate) const API_SERVICE: &str = "10.96.0.1";

/// Returns a node's address.
pub(crate) fn address_of(node: u8) -> String {
    format!("10.77.0.{}", 10 + node)
}

/// Returns the addresses of a node's pods.
pub(crate) fn pods_of(node: u8) -> String {
    format!("10.78.{node}.0/24")
}

/// Creates the bridge, with the control plane's address, and routes to the nodes' pods.
pub(crate) fn create(nodes: u8) -> Result<()> {
    let mut script = format!(
        "ip link set lo up; ip link add cluster type bridge; ip link set cluster up; ip addr add {PLANE}/24 dev cluster"
    );
    for node in 1..=nodes {
        script += &format!("; ip route add {} via {}", pods_of(node), address_of(node));
    }
    shell(&script)
}

/// Connects the network namespace of a process to the bridge, as the node `node` of `nodes`.
pub(crate) fn connect(node: u8, nodes: u8, process: u32) -> Result<()> {
    shell(&format!(
        "ip link add node{node} type veth peer name eth0 netns {process}; ip link set node{node} master cluster up"
    ))?;
    let mut script = format!(
        "ip link set lo up; ip addr add {}/24 dev eth0; ip link set eth0 up; ip route add default via {PLANE}; \
         echo 1 > /proc/sys/net/ipv4/ip_forward",
        address_of(node)
    );
    for other in (1..=nodes).filter(|other| *other != node) {
        script += &format!("; ip route add {} via {}", pods_of(other), address_of(other));
    }
    shell(&format!("nsenter --net --target {process} -- sh -euc '{script}'"))
}

/// Returns the configuration of a node's CNI plugins.
pub(crate) fn cni(node: u8) -> serde_json::Value {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": pods_of(node)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni/networks",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}
