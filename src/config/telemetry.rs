use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Endpoint, TlsFiles};
use crate::telemetry::{LogFormat, LogLevel};

/// The log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Log {
    /// The least severe level that is logged: `error` (of libraries only), `warn`, `info`, `debug` or `trace`
    /// (also what libraries log).
    ///
    /// numacast logs its own problems as `warn`.
    ///
    /// A change in the file takes effect without a restart, unless a flag sets the level. `SIGUSR1` switches
    /// to debug and back.
    pub level: LogLevel,
    /// The format of the log: `text` or `json`.
    pub format: LogFormat,
}

/// The metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Metrics {
    /// Where `/metrics` is served: an IP address with a port, `:9742` for all addresses, or `none`.
    #[schemars(with = "String", regex(pattern = "^(none|.*:[0-9]+)$"))]
    pub address: Endpoint,
    /// The TLS files of the metrics endpoint (PEM): `certFile`, `keyFile` and, to require client
    /// certificates, `clientCaFile`. Default: plain HTTP
    ///
    /// `certFile` has the certificate and its chain; clients need a certificate that `clientCaFile` signed.
    ///
    /// Changed files are read again, so renewed certificates need no restart; if they do not work, the old
    /// ones stay in use, and a warning is logged. TLS 1.2 and 1.3.
    pub tls: Option<TlsFiles>,
}

/// The health endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Health {
    /// Where health is served (plain HTTP): an IP address with a port, `:9743` for all addresses, or `none`.
    ///
    /// The paths are `/livez`, `/readyz` and `/startupz`.
    ///
    /// Each returns 200, or 503 with one sentence per reason. For the agent: `livez`: the loop runs, and the
    /// kubelet's configuration file was not replaced under its mount. `readyz`: the node was read and its
    /// object written recently. `startupz`: the object was written once. For the proxy, the Pods API and the
    /// controller, see docs/metrics.md. A kubelet probes the pod's address and not loopback, so set `:9743`
    /// in a pod. Health and metrics may share an address, unless metrics have TLS.
    #[schemars(with = "String", regex(pattern = "^(none|.*:[0-9]+)$"))]
    pub address: Endpoint,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { address: Endpoint::loopback(9742), tls: None }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self { address: Endpoint::loopback(9743) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_and_health_are_served_on_loopback_by_default() {
        for address in [Metrics::default().address, Health::default().address] {
            let Endpoint::At(default) = address else { panic!("{address}") };
            assert!(default.ip().is_loopback());
        }
    }
}
