//! The agent and the controller in pods exactly as the chart renders them. A real kubelet turns the pod into
//! its request to a container runtime: environment, volumes with the token and the configuration, mounts,
//! user, capabilities; `tests/parts/in-pod` executes that with the binary under test, in an otherwise empty
//! root filesystem. The kubelet probes it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::support::chart::{self, AGENT, Chart, POLICIES, RELEASE, RIGHTS};
use crate::support::koordinator::{self, DEVICE_ALLOCATED};
use crate::support::podresources::{Allocation, ClientKind, Clients, Rpc, allocations};
use crate::support::wait::{Fatal, until};
use crate::support::{Cluster, Needs, Parts, RealNode, Stop, nrt, oracle, parts, pod, tokens};

const NODE: &str = "two-by-eight";
const NIC: &str = "example.com/nic";
/// The API server's address in pods: the first address of the cluster's Service range.
const SERVICE: &str = "10.96.0.1:443";
/// The kinds of the release that the tests use besides RBAC and policies.
const REST: [&str; 4] = ["ConfigMap", "DaemonSet", "Deployment", "Lease"];

/// A release on a cluster of one real node.
struct World {
    node: RealNode,
    chart: Chart,
    cluster: Cluster,
}

impl World {
    async fn start(parts: &Parts, values: &Value) -> Result<Self> {
        let cluster = Cluster::start(parts).await?;
        let node = RealNode::on(NODE)?.running_pods().start(&cluster).await?;
        let chart = Chart::render(parts, values)?;
        let admin = cluster.client();
        tokens::namespace(&admin, RELEASE).await?;
        for kinds in [&RIGHTS[..], &POLICIES, &REST] {
            chart.install(&admin, kinds).await?;
        }
        let (port, certificate) = node.https_port()?;
        // `kube-root-ca.crt` is what a controller of every cluster creates in each namespace; this kubelet is
        // its own CA.
        for (name, key, text) in [
            ("kube-root-ca.crt", "ca.crt", cluster.certificates()?),
            ("kubelet-ca", "ca.crt", std::fs::read_to_string(certificate)?),
        ] {
            let map: ConfigMap =
                serde_json::from_value(json!({"metadata": {"name": name}, "data": {key: text}}))?;
            Api::namespaced(admin.clone(), RELEASE).create(&PostParams::default(), &map).await?;
        }
        let object = Api::<Node>::all(admin).get(node.name()).await?;
        let addresses = object.status.unwrap_or_default().addresses.into_iter().flatten();
        let mut own = addresses.filter(|address| address.type_ == "InternalIP");
        let own = own.next().context("the Node has no address")?.address;
        // The Node reports the port.
        let (_, number) = port.rsplit_once(':').context("the kubelet has no port")?;
        let kubelet = format!("{own}:{number}");
        let reach = [(SERVICE.to_owned(), cluster.address().to_owned()), (kubelet, port)];
        node.map_addresses(&BTreeMap::from(reach))?;
        Ok(Self { node, chart, cluster })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.client(), RELEASE)
    }

    /// Creates a pod from a DaemonSet, Deployment or Job as its controller would, on the test's node.
    async fn start_pod(&self, kind: &str, of: &str, name: &str) -> Result<Running<'_>> {
        let object = self.chart.object(kind, of)?;
        let template = &object.data["spec"]["template"];
        let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = json!(name);
        if kind == "DaemonSet" {
            let live = chart::api(&self.cluster.client(), object)?.get(of).await?;
            pod["metadata"]["ownerReferences"] = json!([{
                "apiVersion": "apps/v1",
                "kind": kind,
                "name": of,
                "uid": live.metadata.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }]);
        }
        self.run(pod).await
    }

    async fn run(&self, mut pod: Value) -> Result<Running<'_>> {
        pod["spec"]["nodeName"] = json!(self.node.name());
        let pod: Pod = serde_json::from_value(pod)?;
        let pod = self.pods().create(&PostParams::default(), &pod).await?;
        let name = pod.metadata.name.context("a pod without a name")?;
        let uid = pod.metadata.uid.context("a pod without a UID")?;
        let container = pod.spec.context("a pod without a spec")?.containers.remove(0).name;
        Ok(Running { world: self, name, uid, container })
    }

    /// Waits until the published object matches the kubelet's own checkpoints.
    async fn matches_oracle(&self, agent: &Running<'_>) -> Result<()> {
        let true_now = until("the published object equals the oracle", async || {
            agent.still_runs().await?;
            self.node.kubelet_still_runs()?;
            let expected = oracle::expected(&self.node).await?;
            let published = nrt::read(&self.node.client(), self.node.name()).await?;
            let differences = expected.differences(&published.zones);
            ensure!(differences.is_empty(), "it does not:\n  {}", differences.join("\n  "));
            Ok(())
        });
        true_now.await.with_context(|| agent.log_tail())
    }
}

/// A really running pod.
struct Running<'a> {
    world: &'a World,
    name: String,
    uid: String,
    container: String,
}

impl Running<'_> {
    /// Returns the output of its container, across all restarts.
    fn log(&self) -> String {
        let dir = format!("{RELEASE}_{}_{}", self.name, self.uid);
        let dir = self.world.node.dir().join("pod-logs").join(dir).join(&self.container);
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).unwrap_or_default()).collect()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "the end of the log of {}:\n{}",
            self.name,
            lines[lines.len().saturating_sub(20)..].join("\n")
        )
    }

    /// Returns an error if its container has ended or was restarted.
    async fn still_runs(&self) -> Result<()> {
        let pod = self.world.pods().get(&self.name).await?;
        let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
        let ended = statuses.iter().any(|one| {
            one.restart_count > 0 || one.state.as_ref().is_some_and(|state| state.terminated.is_some())
        });
        ensure!(!ended, Fatal(format!("it has ended; {}", self.log_tail())));
        Ok(())
    }

    /// Waits until the kubelet's probes report it ready.
    async fn wait_until_ready(&self) -> Result<()> {
        let what = format!("{} is ready", self.name);
        let ready = until(&what, async || {
            self.still_runs().await?;
            let status = self.world.pods().get(&self.name).await?.status.unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default();
            ensure!(
                conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True"),
                "{conditions:?}"
            );
            Ok(())
        });
        ready.await.with_context(|| self.log_tail())
    }

    /// Waits until it ends by itself; returns the exit code.
    async fn wait_for_exit(&self) -> Result<i32> {
        until(&format!("{} has ended", self.name), async || {
            let pod = self.world.pods().get(&self.name).await?;
            let statuses = pod.status.unwrap_or_default().container_statuses.unwrap_or_default();
            let state = statuses.into_iter().next().and_then(|one| one.state).unwrap_or_default();
            Ok(state.terminated.with_context(|| self.log_tail())?.exit_code)
        })
        .await
    }

    /// Returns its process as seen by the host.
    fn process(&self) -> Result<PathBuf> {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command.starts_with(b"/numacast\0") && self.is_its(&entry.path()) {
                return Ok(entry.path());
            }
        }
        anyhow::bail!("no process is {}: {}", self.name, self.log_tail())
    }

    /// Returns whether a process is the pod's: the kubelet mounts a file of the pod's directory over
    /// `/etc/hosts`.
    fn is_its(&self, process: &Path) -> bool {
        let mounts = std::fs::read_to_string(process.join("mountinfo")).unwrap_or_default();
        mounts.lines().any(|line| line.contains(&self.uid))
    }

    /// Checks that it has no privileges on the host, cannot gain any, and sees only what is mounted.
    fn is_confined(&self, user: u32, inherits: Option<&str>) -> Result<()> {
        self.is_confined_except(user, inherits, None)
    }

    /// Like [`Running::is_confined`], except for one writable directory.
    fn is_confined_except(&self, user: u32, inherits: Option<&str>, writes: Option<&Path>) -> Result<()> {
        let process = self.process()?;
        let status = std::fs::read_to_string(process.join("status"))?;
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
            line.trim_start_matches(':').split_whitespace().collect::<Vec<_>>().join(" ")
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            ensure!(of(set) == "0000000000000000", "{set} is {}", of(set));
        }
        ensure!(of("NoNewPrivs") == "1" && of("Seccomp") == "2", "{status}");
        let id = user.to_string();
        ensure!(
            of("Uid") == [id.as_str(); 4].join(" ") && of("Gid") == [id.as_str(); 4].join(" "),
            "{status}"
        );
        let mounts = std::fs::read_to_string(process.join("mountinfo"))?;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (place, options) = (fields[4], fields[5]);
            let own =
                ["/proc", "/dev"].iter().any(|own| place == *own || place.starts_with(&format!("{own}/")));
            let below = |of: &str| place.starts_with(&format!("{of}/"));
            // Mounts below a read-only mount remain writable: the described machine's trees, which a real
            // machine does not have there, and pods' volumes if the kubelet's directory is mounted.
            let inherited = ["/host/sys/devices/system", "/host/sys/kernel/mm", "/host/sys/bus"]
                .into_iter()
                .chain(inherits)
                .any(below);
            let read_only = options.split(',').any(|option| option == "ro") || place == "/etc/hosts";
            let writable = writes.is_some_and(|dir| Path::new(place) == dir);
            ensure!(own || inherited || read_only || writable, "{place} may be written: {options}");
        }
        Ok(())
    }

    /// Deletes it, waits until the kubelet has ended it, and returns its log.
    async fn delete(self) -> Result<String> {
        self.world.pods().delete(&self.name, &DeleteParams::default()).await?;
        until(&format!("{} is gone", self.name), async || {
            ensure!(self.world.pods().get_opt(&self.name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        Ok(self.log())
    }
}

/// Uses the kubelet's serving certificate as its CA: it has no other here.
fn with_kubelet_ca() -> Value {
    json!({
        "kubelet": {"caFile": "/etc/kubelet-ca/ca.crt", "serverName": NODE},
        "agent": {
            "extraVolumes": [{"name": "kubelet-ca", "configMap": {"name": "kubelet-ca"}}],
            "extraVolumeMounts": [{"name": "kubelet-ca", "mountPath": "/etc/kubelet-ca", "readOnly": true}],
        },
    })
}

fn attribute(object: &Value, name: &str) -> Option<String> {
    let mut all = object["attributes"].as_array().into_iter().flatten();
    Some(all.find(|one| one["name"] == name)?["value"].as_str()?.to_owned())
}

/// Probes readiness every second instead of every 10 seconds.
fn quick(mut values: Value) -> Value {
    for part in ["agent", "controller"] {
        values[part]["probes"]["readiness"] = json!({"periodSeconds": 1});
    }
    values
}

/// Reads the kubelet's configuration from its file, with as few mounts as possible.
fn with_file() -> Value {
    json!({"kubelet": {"configFile": "/var/lib/kubelet/config.yaml", "devicePluginsDir": ""}})
}

/// Mounts the kubelet's whole directory.
fn with_directory() -> Value {
    json!({"kubelet": {"configFile": "/var/lib/kubelet/config.yaml", "mountDir": true}})
}

/// The agent's normal operation.
async fn works(world: &World, inherits: Option<&str>) -> Result<()> {
    let agent = world.start_pod("DaemonSet", AGENT, "agent-1").await?;
    agent.wait_until_ready().await?;
    world.matches_oracle(&agent).await?;
    agent.is_confined(0, inherits)?;
    let object = nrt::read(&world.node.client(), NODE).await?.content;
    ensure!(attribute(&object, "topologyManagerPolicy").as_deref() == Some("best-effort"), "{object}");

    // Allocations and releases; one spans the memory of both NUMA nodes.
    world.node.run(pod("wide").cpus(1).memory("14Gi")).await?;
    world.matches_oracle(&agent).await?;
    world.node.delete("wide").await?;
    world.matches_oracle(&agent).await?;
    world.node.run(pod("a").cpus(2).memory("1Gi").device(NIC, 1)).await?;
    world.matches_oracle(&agent).await?;

    // Manual changes of the object.
    let objects = nrt::api(&world.node.client());
    let edit = Patch::Merge(json!({"zones": []}));
    let person = PatchParams { field_manager: Some("kubectl-edit".to_owned()), ..PatchParams::default() };
    let reported = until("an Event reports the edit", async || {
        // Again: a concurrent write of the agent may have overwritten the previous edit.
        objects.patch(NODE, &person, &edit).await?;
        world.matches_oracle(&agent).await?;
        let events = Api::<Event>::namespaced(world.node.client(), "default");
        let all = events.list(&ListParams::default()).await?.items;
        let reasons: Vec<String> = all.into_iter().filter_map(|event| event.reason).collect();
        ensure!(reasons.iter().any(|reason| reason == "ObjectTakenOver"), "only {reasons:?}");
        Ok(())
    });
    reported.await.with_context(|| agent.log_tail())?;
    objects.delete(NODE, &DeleteParams::default()).await?;
    world.matches_oracle(&agent).await?;
    agent.wait_until_ready().await?;
    let log = agent.log();
    ensure!(!log.contains("RBAC denied") && !log.contains("forbidden"), "{log}");
    Ok(())
}

/// A kubelet that is killed and restarted recreates its sockets in the mounted directories.
async fn survives_a_kubelet(world: &mut World) -> Result<()> {
    world.node.restart_kubelet(Stop::Kill).await?;
    let agent = world.running("agent-1").await?;
    agent.wait_until_ready().await?;
    world.matches_oracle(&agent).await?;
    world.node.run(pod("c").cpus(2).memory("1Gi").device(NIC, 1)).await?;
    world.matches_oracle(&agent).await?;
    if std::env::var_os("NUMACAST_MEASURE").is_some() {
        eprintln!(
            "allocations, from the kubelet's checkpoint to the API server: {}",
            latencies(world).await?
        );
    }
    let log = agent.delete().await?;
    ensure!(!log.contains("in-pod:"), "{log}");
    Ok(())
}

/// Measures the time from a pod's entry in the CPU Manager's checkpoint until its CPUs are subtracted in the
/// published object.
async fn latencies(world: &World) -> Result<String> {
    let node = world.node.name().to_owned();
    let free = |object: &nrt::ObjectVersion| -> u64 {
        object.zones.values().map(|zone| zone["cpu"].available).sum()
    };
    let before = free(&nrt::read(&world.node.client(), &node).await?);
    let (client, of) = (world.node.client(), node.clone());
    let first = nrt::read(&client, &node).await?.version;
    let (sender, mut versions) = tokio::sync::mpsc::unbounded_channel();
    let watching = tokio::spawn(async move {
        let only = WatchParams::default().fields(&format!("metadata.name={of}"));
        let mut stream = std::pin::pin!(nrt::api(&client).watch(&only, &first).await?);
        while let Some(Ok(event)) = stream.next().await {
            if let WatchEvent::Modified(object) | WatchEvent::Added(object) = event {
                sender.send((Instant::now(), nrt::ObjectVersion::of(&object)?))?;
            }
        }
        anyhow::Ok(())
    });
    let mut all = Vec::new();
    for number in 0..40 {
        let name = format!("load-{number}");
        world.node.submit(&pod(&name).cpus(2).memory("256Mi")).await?;
        let uid = world.node.pods().await?.into_iter().find(|pod| pod.metadata.name.as_ref() == Some(&name));
        let uid = uid.and_then(|pod| pod.metadata.uid).context("a pod without a UID")?;
        let file = world.node.kubelet_dir().join("cpu_manager_state");
        let written = tokio::task::spawn_blocking(move || {
            loop {
                if std::fs::read_to_string(&file).unwrap_or_default().contains(&uid) {
                    return Instant::now();
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        })
        .await?;
        loop {
            let (at, object) = versions.recv().await.context("the watch ended")?;
            if free(&object) + 2 == before {
                all.push(at.saturating_duration_since(written).as_secs_f64() * 1e3);
                break;
            }
        }
        world.node.delete(&name).await?;
        while free(&versions.recv().await.context("the watch ended")?.1) != before {}
    }
    watching.abort();
    all.sort_by(f64::total_cmp);
    let at = |share: usize| all[(all.len() - 1) * share / 100];
    Ok(format!("p50 {:.1} ms, p90 {:.1} ms, max {:.1} ms of {}", at(50), at(90), at(100), all.len()))
}

impl World {
    /// Returns a pod that was started earlier.
    async fn running(&self, name: &str) -> Result<Running<'_>> {
        let pod = self.pods().get(name).await?;
        let uid = pod.metadata.uid.context("a pod without a UID")?;
        let container = pod.spec.context("a pod without a spec")?.containers.remove(0).name;
        Ok(Running { world: self, name: name.to_owned(), uid, container })
    }
}

#[tokio::test]
async fn the_agent_works_as_the_chart_runs_it() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, &with_kubelet_ca()).await?;
    works(&world, None).await?;
    survives_a_kubelet(&mut world).await
}

#[tokio::test]
async fn the_agent_works_with_the_kubelets_file() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, &quick(with_file())).await?;
    works(&world, None).await?;
    survives_a_kubelet(&mut world).await
}

/// The mount still shows the directory that was moved away; only a new container sees its replacement.
#[tokio::test]
async fn drop_ins_whose_directory_was_replaced_are_not_used() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let mut values = quick(with_file());
    values["kubelet"]["configDir"] = json!("/var/lib/kubelet/conf.d");
    // The agent exits by itself.
    values["agent"]["probes"]["liveness"] = json!({"periodSeconds": 3600});
    let mut world = World::start(&parts, &values).await?;
    let dir = world.node.kubelet_dir().join("conf.d");
    let policy = |name: &str| -> Result<()> {
        std::fs::create_dir(&dir)?;
        Ok(std::fs::write(dir.join("a.conf"), format!("topologyManagerPolicy: {name}\n"))?)
    };
    policy("restricted")?;
    let agent = world.start_pod("DaemonSet", AGENT, "agent-1").await?;
    agent.wait_until_ready().await?;
    let wait_for_policy = async |client: &kube::Client, name: &str| {
        until(&format!("the policy is {name}"), async || {
            let object = nrt::read(client, NODE).await?.content;
            let policy = attribute(&object, "topologyManagerPolicy");
            ensure!(policy.as_deref() == Some(name), "it is {policy:?}");
            Ok(())
        })
        .await
    };
    wait_for_policy(&world.node.client(), "restricted").await?;

    std::fs::rename(&dir, dir.with_extension("old"))?;
    policy("none")?;
    world.node.restart_kubelet(Stop::Kill).await?;
    let agent = world.running("agent-1").await?;
    until("the agent exits", async || {
        let exits =
            "conf.d was replaced on the host before the kubelet restarted, and only a new container sees the";
        ensure!(agent.log().contains(exits), "{}", agent.log_tail());
        Ok(())
    })
    .await?;
    wait_for_policy(&world.node.client(), "none").await.with_context(|| agent.log_tail())
}

#[tokio::test]
async fn the_agent_works_with_the_kubelets_directory() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let mut world = World::start(&parts, &quick(with_directory())).await?;
    works(&world, Some("/host/var/lib/kubelet")).await?;
    survives_a_kubelet(&mut world).await
}

/// The proxy serves where consumers on the host expect the socket.
#[tokio::test]
async fn the_proxy_works_as_the_chart_runs_it() -> Result<()> {
    const GROUP: u32 = 4711;
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    parts::fetched(&["podresources"])?.context("no clients")?;
    let clients = Clients::of(&parts);
    let host = tempfile::tempdir()?;
    // It does not exist yet.
    let dir = host.path().join("run/pod-resources");
    let mut values = quick(with_kubelet_ca());
    values["config"]["proxy"] = json!({"enabled": true, "dir": dir, "group": GROUP});
    let world = World::start(&parts, &values).await?;
    let admin = world.cluster.client();
    koordinator::install(&admin).await?;
    let topology = json!({"socketID": 0, "nodeID": 1, "pcieID": "", "busID": ""});
    let gpu = json!({"type": "gpu", "id": "GPU-a", "minor": 0, "health": true, "topology": topology});
    koordinator::describe(&admin, NODE, json!([gpu])).await?;
    let allocated = json!({"gpu": [{"minor": 0, "id": "GPU-a"}]}).to_string();
    world.node.run(pod("a").device(NIC, 1).annotation(DEVICE_ALLOCATED, &allocated)).await?;

    let agent = world.start_pod("DaemonSet", AGENT, "agent-1").await?;
    agent.wait_until_ready().await?;
    world.matches_oracle(&agent).await?;
    agent.is_confined_except(0, None, Some(&dir))?;
    let socket = dir.join("kubelet.sock");
    let file = std::fs::metadata(&socket)?;
    ensure!((file.uid(), file.gid(), file.mode() & 0o777) == (0, GROUP, 0o660), "{file:?}");
    let right = Allocation {
        pod: "default/a".to_owned(),
        container: "main".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        id: "GPU-a".to_owned(),
        nodes: vec![1],
    };
    let has_it = async |agent: &Running<'_>| {
        let listed = until("the pod is listed with its device", async || {
            agent.still_runs().await?;
            let response = clients.request(ClientKind::Go, &socket, &Rpc::List).await?.ok()?;
            ensure!(allocations(&response.message)?.contains(&right), "{}", response.message);
            Ok(())
        });
        listed.await.with_context(|| agent.log_tail())
    };
    has_it(&agent).await?;
    let log = agent.log();
    ensure!(!log.contains("RBAC denied") && !log.contains("forbidden"), "{log}");

    // While the agent is replaced the socket remains, and requests get `Unavailable` instead of a missing
    // socket.
    agent.delete().await?;
    ensure!(socket.exists(), "the socket is gone");
    let response = clients.request(ClientKind::Go, &socket, &Rpc::List).await?;
    ensure!(response.code == "Unavailable", "{response:?}");
    let next = world.start_pod("DaemonSet", AGENT, "agent-2").await?;
    next.wait_until_ready().await?;
    has_it(&next).await
}

/// Returns a pod's HTTP response at one of its ports.
async fn response(running: &Running<'_>, port: u16, path: &str) -> Result<String> {
    let pod = running.world.pods().get(&running.name).await?;
    let address = pod.status.and_then(|status| status.pod_ip).context("the pod has no address")?;
    let stream = tokio::net::TcpStream::connect((address.as_str(), port)).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header("Host", &address).body(String::new())?;
    let response = sender.send_request(request).await?;
    ensure!(response.status().is_success(), "{path}: {}", response.status());
    Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?)
}

#[tokio::test]
async fn the_controller_works_as_the_chart_runs_it() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let mut values = quick(with_kubelet_ca());
    values["controller"]["config"]["garbage"] = json!({"interval": "1s"});
    let world = World::start(&parts, &values).await?;
    let agent = world.start_pod("DaemonSet", AGENT, "agent-1").await?;
    agent.wait_until_ready().await?;
    world.matches_oracle(&agent).await?;
    let objects = nrt::api(&world.cluster.client());
    let mut stale = objects.get(NODE).await?;
    stale.metadata = kube::api::ObjectMeta { name: Some("gone".to_owned()), ..Default::default() };
    objects.create(&PostParams::default(), &stale).await?;

    let controller = world.start_pod("Deployment", "numacast-controller", "controller-1").await?;
    controller.wait_until_ready().await?;
    controller.is_confined(65532, None)?;
    until("the object of no Node is gone", async || {
        controller.still_runs().await?;
        ensure!(objects.get_opt("gone").await?.is_none(), "it is there");
        Ok(())
    })
    .await
    .with_context(|| controller.log_tail())?;
    ensure!(objects.get_opt(NODE).await?.is_some(), "the object of a Node is gone, too");
    until("the controller counts the fleet", async || {
        let metrics = response(&controller, 9742, "/metrics").await?;
        for line in [
            "numacast_controller_leader 1",
            "numacast_fleet_covered_nodes 1",
            "numacast_fleet_nodes_without_ready_agent 0",
        ] {
            ensure!(metrics.lines().any(|one| one == line), "{line} is not in\n{metrics}");
        }
        Ok(())
    })
    .await?;
    let log = controller.log();
    ensure!(!log.contains("forbidden") && !log.contains("cannot"), "{log}");

    // `helm test`, and the pre-uninstall hook.
    let check = world.chart.object("Pod", "numacast-check")?;
    let check = world.run(json!({"metadata": {"name": "check"}, "spec": check.data["spec"]})).await?;
    ensure!(check.wait_for_exit().await? == 0, "{}", check.log_tail());
    controller.delete().await?;
    let purge = world.start_pod("Job", "numacast-purge", "purge").await?;
    let sets = chart::api(&world.cluster.client(), world.chart.object("DaemonSet", AGENT)?)?;
    until("the agents' DaemonSet is gone", async || {
        ensure!(sets.get_opt(AGENT).await?.is_none(), "{}", purge.log_tail());
        Ok(())
    })
    .await?;
    // As the garbage collector would.
    agent.delete().await?;
    ensure!(purge.wait_for_exit().await? == 0, "{}", purge.log_tail());
    ensure!(objects.get_opt(NODE).await?.is_none(), "{}", purge.log_tail());
    Ok(())
}

/// [`Running::is_confined`] detects each violation.
#[tokio::test]
async fn a_pod_that_is_less_confined_is_noticed() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::Kubelet)? else { return Ok(()) };
    let world = World::start(&parts, &quick(with_kubelet_ca())).await?;
    type Loosen = fn(&mut Value);
    let less: [(&str, Loosen, &str); 3] = [
        ("writable", |c| c["securityContext"]["readOnlyRootFilesystem"] = json!(false), "/ may be written"),
        ("escalating", |c| c["securityContext"]["allowPrivilegeEscalation"] = json!(true), "NoNewPrivs"),
        ("mounted", |c| c["volumeMounts"][2]["readOnly"] = json!(false), "/host/sys/devices may be written"),
    ];
    for (name, loosen, found) in less {
        let mut template = world.chart.object("DaemonSet", AGENT)?.data["spec"]["template"].clone();
        loosen(&mut template["spec"]["containers"][0]);
        let pod = json!({"metadata": {"name": name}, "spec": template["spec"]});
        let running = world.run(pod).await?;
        running.wait_until_ready().await?;
        let error = running.is_confined(0, None).err().with_context(|| format!("{name} is not noticed"))?;
        ensure!(format!("{error:#}").contains(found), "{name}: {error:#}");
        running.delete().await?;
    }
    Ok(())
}
