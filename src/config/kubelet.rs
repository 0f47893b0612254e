use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use super::Period;
use crate::agent::ConfigSource;
use crate::kubelet::{Address, CertificateFingerprint, Overrides};

/// The host's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Host {
    /// Where the host's root is mounted; other paths are below it by default.
    pub root: PathBuf,
    /// The host's `/sys`. Default: `<host.root>/sys`
    pub sys: Option<PathBuf>,
    /// The host's `/proc`. Default: `<host.root>/proc`
    pub proc: Option<PathBuf>,
}

/// The kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Kubelet {
    /// The kubelet's `--root-dir`. Default: `<host.root>/var/lib/kubelet`
    pub dir: Option<PathBuf>,
    /// The directory where device plugins register. Default: `<kubelet.dir>/device-plugins`
    ///
    /// Kubelets with another `--root-dir` keep it in `/var/lib/kubelet`.
    pub device_plugins_dir: Option<PathBuf>,
    /// The podresources socket. Default: `<kubelet.dir>/pod-resources/kubelet.sock`
    pub socket: Option<PathBuf>,
    /// The deadline of a call to the kubelet; with the proxy 4 s at most.
    ///
    /// That holds for the proxy and the scans of an agent that serves it, since clients wait for 5 to 10 s.
    pub timeout: Period,
    /// The kubelet's HTTPS address, with an optional port. Default: address and port of the Node
    ///
    /// It is an IP address or a host name. In a pod: `NODE_ADDRESS`, from `status.hostIP`.
    #[schemars(with = "Option<String>", length(min = 1))]
    pub address: Option<Address>,
    /// The CA of the kubelet's serving certificate (PEM). Default: that of the API server's certificate
    ///
    /// The certificate is always verified, because the agent sends its token. Kubelets with certificates of
    /// the cluster's CA (`serverTLSBootstrap`) need nothing here. A self-signed certificate,
    /// `/var/lib/kubelet/pki/kubelet.crt`, is its own CA; it contains the node's name and no address, so
    /// `kubelet.serverName` must be set as well. The file is read for each connection.
    pub ca_file: Option<PathBuf>,
    /// The name in the kubelet's serving certificate. Default: the address
    pub server_name: Option<String>,
    /// SHA-256 fingerprints of kubelets' serving certificates that are accepted whoever signed them.
    ///
    /// For self-signed certificates, if `kubelet.configFile` cannot be used. The kubelet must prove that it has the
    /// certificate's key; names and dates in the certificate are not checked. Other certificates are verified as
    /// usual. `openssl x509 -in /var/lib/kubelet/pki/kubelet.crt -noout -fingerprint -sha256` prints the fingerprint
    /// on a node; the list may have those of many nodes. Digits may be in pairs with colons, after `sha256:`.
    #[schemars(schema_with = "fingerprints_schema")]
    pub certificate_fingerprints: Vec<CertificateFingerprint>,
    /// Where the kubelet's configuration is read: `file` (files and command line), `configz` (HTTPS port),
    /// `auto` (`file`, else `configz`) or `none`.
    ///
    /// `configz` requires the permission to get `nodes/configz`.
    ///
    /// Policies and reservations are taken from it. It is read once per start of the kubelet, as the kubelet
    /// itself does, and used until it can be read again. Unknown keys and feature gates are ignored.
    ///
    /// To the scheduler plugin, an object without policies means that nothing is aligned on the node. So an
    /// agent keeps the policies of an existing object until it can read others; after five minutes, the log
    /// and an Event report that. If there are none, the agent reports that after five seconds and is not Ready,
    /// and the first object waits for them for up to 30 s.
    ///
    /// `file`: configuration file, drop-ins and flags, merged as by the kubelet. Its command line is found in
    /// `host.proc` if the kubelet is a process of its own, unlike in k3s; otherwise flags that override the
    /// file are not seen. `configz` needs kubelet 1.33 or later; earlier ones require `nodes/proxy` for it.
    pub config_source: ConfigSource,
    /// The kubelet's configuration file. Default: as on its command line, else `<kubelet.dir>/config.yaml`
    pub config_file: Option<PathBuf>,
    /// The drop-ins for `kubelet.configFile`. Default: as on its command line, else none
    pub config_dir: Option<PathBuf>,
    /// Fields that override the kubelet's configuration: `topologyManagerPolicy` together with
    /// `topologyManagerScope`, `topologyManagerPolicyOptions`, `cpuManagerPolicy` and `memoryManagerPolicy`.
    ///
    /// For example `{topologyManagerPolicy: restricted, topologyManagerScope: pod}`. A policy that is not the
    /// kubelet's makes the scheduler place pods that the kubelet rejects. Reservations cannot be set: with
    /// static policies the kubelet reports them.
    #[serde(deserialize_with = "overrides")]
    #[schemars(schema_with = "overrides_schema")]
    pub config_overrides: Overrides,
}

/// Returns the schema of the fingerprints that [`CertificateFingerprint`] parses.
fn fingerprints_schema(_: &mut SchemaGenerator) -> Schema {
    let prefix = "([Ss][Hh][Aa]256(:| [Ff]ingerprint=))?";
    let digits = "([0-9A-Fa-f]{64}|[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){31})";
    json_schema!({"type": "array", "items": {"type": "string", "pattern": format!("^{prefix}{digits}$")}})
}

/// Parses the overrides. Unlike the kubelet's own configuration, invalid values are errors.
fn overrides<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Overrides, D::Error> {
    let overrides = Overrides::deserialize(deserializer)?;
    overrides.check().map_err(serde::de::Error::custom)?;
    Ok(overrides)
}

/// Returns the schema of the overrides, with the values that [`Overrides::check`] accepts. It may be null, as a
/// section may not.
fn overrides_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": {
            "cpuManagerPolicy": {"enum": ["none", "static"]},
            "memoryManagerPolicy": {"enum": ["None", "Static"]},
            "topologyManagerPolicy": {"enum": ["none", "best-effort", "restricted", "single-numa-node"]},
            "topologyManagerScope": {"enum": ["container", "pod"]},
            "topologyManagerPolicyOptions": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    })
}

impl Default for Host {
    fn default() -> Self {
        Self { root: "/".into(), sys: None, proc: None }
    }
}

impl Default for Kubelet {
    fn default() -> Self {
        Self {
            dir: None,
            device_plugins_dir: None,
            socket: None,
            timeout: Period::seconds(10),
            address: None,
            ca_file: None,
            server_name: None,
            certificate_fingerprints: Vec::new(),
            config_source: ConfigSource::default(),
            config_file: None,
            config_dir: None,
            config_overrides: Overrides::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn overrides_with_a_value_of_the_schema_are_valid() {
        let schema = overrides_schema(&mut SchemaGenerator::default()).to_value();
        let read = |field: &str, value: &Value| {
            let mut fields = json!({"topologyManagerPolicy": "none", "topologyManagerScope": "pod"});
            fields[field] = value.clone();
            serde_json::from_value::<Kubelet>(json!({"configOverrides": fields}))
        };
        for (field, schema) in schema["properties"].as_object().unwrap() {
            for value in schema["enum"].as_array().unwrap_or(&vec![json!({"a": "b"})]) {
                assert!(read(field, value).is_ok(), "{field}: {value}");
            }
            assert!(read(field, &json!("strict")).is_err(), "{field}");
        }
    }
}
