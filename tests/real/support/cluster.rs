//! A real API server with its etcd, on loopback.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Once, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::parts::{self, Parts};
use super::process::{Process, tethered};
use super::wait::until;

/// The administrator's token; the server's token file is in its temporary directory.
const ADMIN_TOKEN: &str = "admin-of-a-test";

/// etcd and an API server in which the CRDs of `crds/` are established.
pub(crate) struct Cluster {
    // Processes first: they must end before their directory is removed.
    api_server: Process,
    etcd: Process,
    etcd_url: String,
    /// The command that starts the API server, to restart it at the same address.
    again: Vec<OsString>,
    client: Client,
    url: String,
    programs: Programs,
    dir: TempDir,
}

/// Deviations from the default API server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unusual<'a> {
    /// A program other than the default one.
    pub(crate) program: Option<PathBuf>,
    /// Additional admission plugins.
    pub(crate) admission: &'a [&'a str],
    /// Audit all requests but those of administrators and of the API server itself ([`Cluster::audit_log`]).
    pub(crate) audit: bool,
    /// Additional arguments.
    pub(crate) arguments: &'a [&'a str],
}

/// The audit log's name in the cluster's directory.
const AUDIT_LOG: &str = "audit.log";

/// The audit policy: an administrator's requests are the test's own and are omitted.
const AUDIT_POLICY: &str = r#"{
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "userGroups": ["system:masters"]}, {"level": "Metadata"}]
}"#;

/// Paths of the programs that a cluster's nodes run.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) kubelet: PathBuf,
    pub(crate) fakenode: PathBuf,
}

impl Cluster {
    /// Starts etcd and the API server and waits until they are ready.
    pub(crate) async fn start(parts: &Parts) -> Result<Self> {
        Self::start_with(parts, &[]).await
    }

    /// Like [`Cluster::start`], with additional admission plugins.
    pub(crate) async fn start_with(parts: &Parts, admission: &[&str]) -> Result<Self> {
        Self::start_unusual(parts, &Unusual { admission, ..Unusual::default() }).await
    }

    /// Like [`Cluster::start`], with a customized API server.
    pub(crate) async fn start_unusual(parts: &Parts, unusual: &Unusual<'_>) -> Result<Self> {
        install_tls();
        let mut dir = tempfile::Builder::new().prefix("numacast-").tempdir()?;
        // The logs are needed to debug a failure.
        dir.disable_cleanup(std::env::var_os("NUMACAST_KEEP").is_some());
        let programs = Programs { kubelet: parts.program("kubelet"), fakenode: parts.program("fakenode") };
        let (etcd, etcd_url) = start_etcd(parts, dir.path())?;
        let (again, url) = api_server_command(parts, &programs, dir.path(), &etcd_url, unusual)?;
        let api_server = start_api_server(dir.path(), &again)?;
        let file = write_kubeconfig(dir.path(), &url, "admin", &json!({ "token": ADMIN_TOKEN }))?;
        let client = client_of(dir.path(), &file).await?;
        let mut cluster = Self { client, api_server, etcd, etcd_url, again, url, programs, dir };
        cluster.wait_until_ready().await?;
        cluster.apply_crds().await?;
        Ok(cluster)
    }

    /// Returns a client with every right.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a directory that is removed with the cluster.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the programs that nodes run.
    pub(crate) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the API server's address: `127.0.0.1:40123`.
    pub(crate) fn address(&self) -> &str {
        self.url.trim_start_matches("https://")
    }

    /// Returns the API server's certificate and its CA's (PEM).
    pub(crate) fn certificates(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.dir.path().join("certificates/apiserver.crt"))?)
    }

    /// Returns the path of the administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.path().join("admin.kubeconfig")
    }

    /// Writes a kubeconfig that impersonates a user and groups.
    pub(crate) fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let name = user.replace([':', '/'], "-");
        let who = json!({ "token": ADMIN_TOKEN, "as": user, "as-groups": groups });
        write_kubeconfig(self.dir.path(), &self.url, &name, &who)
    }

    /// Writes a kubeconfig with its own token.
    pub(crate) fn kubeconfig_of(&self, name: &str, token: &str) -> Result<PathBuf> {
        write_kubeconfig(self.dir.path(), &self.url, name, &json!({ "token": token }))
    }

    /// Returns a client with its own token.
    pub(crate) async fn client_of(&self, name: &str, token: &str) -> Result<Client> {
        client_of(self.dir.path(), &self.kubeconfig_of(name, token)?).await
    }

    /// Returns how many writes of a resource the API server has served, by its own metric: a no-op write
    /// leaves no other trace.
    pub(crate) async fn writes_of(&self, resource: &str) -> Result<u64> {
        self.requests_of(resource, &["APPLY", "PATCH", "PUT", "POST", "DELETE"]).await
    }

    /// Returns how many requests for a resource with one of these verbs the API server has served.
    pub(crate) async fn requests_of(&self, resource: &str, verbs: &[&str]) -> Result<u64> {
        let metrics = self.text_of("/metrics").await?;
        let whose = format!("resource=\"{resource}\"");
        let verbs: Vec<String> = verbs.iter().map(|verb| format!("verb=\"{verb}\"")).collect();
        let counted = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains(&whose)
                && verbs.iter().any(|verb| line.contains(verb))
        });
        let counts = counted.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
        Ok(counts.sum::<Result<u64, _>>()?)
    }

    /// Returns the path of the audit log, one event per line.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.dir.path().join(AUDIT_LOG)
    }

    /// Returns the API server's metrics in the Prometheus text format.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn metrics(&self) -> Result<String> {
        let request = tonic::codegen::http::Request::get("/metrics").body(Vec::new())?;
        Ok(self.new_client().await?.request_text(request).await?)
    }

    /// Returns a client with every right and its own connections. The API server closes connections that were
    /// idle for 90 s, and a client may notice only at its next request.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn new_client(&self) -> Result<Client> {
        client_of(self.dir.path(), &self.admin_kubeconfig()).await
    }

    /// Returns etcd's client URL.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    /// Sends the API server a signal: `STOP` freezes it, `CONT` resumes it.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) fn signal_api_server(&self, name: &str) -> Result<()> {
        self.api_server.signal(name)
    }

    /// Sends etcd a signal.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) fn signal_etcd(&self, name: &str) -> Result<()> {
        self.etcd.signal(name)
    }

    /// Kills the API server; its data is in etcd.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) fn kill_api_server(&mut self) -> Result<()> {
        self.api_server.kill()
    }

    /// Restarts the killed API server and waits until it is ready.
    #[allow(dead_code, reason = "a vocabulary: not every word is in use at all times")]
    pub(crate) async fn restart_api_server(&mut self) -> Result<()> {
        self.api_server = start_api_server(self.dir.path(), &self.again)?;
        self.wait_until_ready().await
    }

    /// Returns the response body to an administrator's GET.
    pub(crate) async fn text_of(&self, path: &str) -> Result<String> {
        let request = tonic::codegen::http::Request::get(path).body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        until("the API server is ready", async || {
            self.api_server.still_runs()?;
            let answer = self.text_of("/readyz").await?;
            ensure!(answer == "ok", "it says {answer}");
            Ok(())
        })
        .await
    }

    /// Installs the CRDs of `crds/` and waits until they are established.
    pub(crate) async fn apply_crds(&self) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        for entry in std::fs::read_dir(parts::repository().join("crds"))? {
            let path = entry?.path();
            let text = std::fs::read_to_string(&path)?;
            let value: Value = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
            let crd: CustomResourceDefinition = serde_json::from_value(value)?;
            let name = crd.name_any();
            api.patch(&name, &PatchParams::apply("tests"), &Patch::Apply(&crd)).await?;
            until(&format!("{name} is established"), async || {
                let status = api.get(&name).await?.status.unwrap_or_default();
                let mut conditions = status.conditions.into_iter().flatten();
                ensure!(conditions.any(|c| c.type_ == "Established" && c.status == "True"));
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

/// Below the kernel's ephemeral ports: one of those may be taken before it is used.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Returns a loopback port that is free now and that no other call in this process has returned.
pub(crate) fn free_port() -> Result<u16> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // Other test programs start at other ports.
    let next = NEXT.get_or_init(|| AtomicU16::new(fastrand::u16(PORTS)));
    for _ in PORTS {
        let port = PORTS.start + next.fetch_add(1, Ordering::Relaxed) % (PORTS.end - PORTS.start);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port of 127.0.0.1 is free")
}

fn install_tls() {
    static DONE: Once = Once::new();
    // It fails only if another provider is installed, which works as well.
    DONE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

fn start_etcd(parts: &Parts, dir: &Path) -> Result<(Process, String)> {
    let url = format!("http://127.0.0.1:{}", free_port()?);
    let peers = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = tethered(parts.program("etcd"));
    command.arg("--unsafe-no-fsync").arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "warn"]);
    Ok((Process::start("etcd", dir, command)?, url))
}

fn start_api_server(dir: &Path, command: &[OsString]) -> Result<Process> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut command = tethered(program);
    command.args(arguments);
    Process::start("kube-apiserver", dir, command)
}

/// Returns the API server's program and arguments, and its URL.
fn api_server_command(
    parts: &Parts,
    programs: &Programs,
    dir: &Path,
    etcd: &str,
    unusual: &Unusual<'_>,
) -> Result<(Vec<OsString>, String)> {
    let key = dir.join("service-accounts.key");
    let made = std::process::Command::new(&programs.fakenode).arg("--new-key").arg(&key).status();
    let made = made.with_context(|| programs.fakenode.display().to_string())?;
    ensure!(made.success(), "fakenode makes no key");
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
    let port = free_port()?;
    let with = |flag: &str, path: &Path| format!("{flag}={}", path.display());
    let mut arguments = vec![
        format!("--etcd-servers={etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        with("--cert-dir", &dir.join("certificates")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        with("--service-account-key-file", &key),
        with("--service-account-signing-key-file", &key),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!(
            "--enable-admission-plugins={}",
            [&["NodeRestriction"], unusual.admission].concat().join(",")
        ),
        // No controller creates the service accounts that this plugin would require.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        with("--token-auth-file", &tokens),
        "--allow-privileged".to_owned(),
    ];
    if unusual.audit {
        let policy = dir.join("audit-policy.json");
        std::fs::write(&policy, AUDIT_POLICY)?;
        arguments.push(with("--audit-policy-file", &policy));
        arguments.push(with("--audit-log-path", &dir.join(AUDIT_LOG)));
    }
    arguments.extend(unusual.arguments.iter().map(|argument| (*argument).to_owned()));
    let program = unusual.program.clone().unwrap_or_else(|| parts.program("kube-apiserver"));
    let program = program.into_os_string();
    let command = std::iter::once(program).chain(arguments.into_iter().map(OsString::from)).collect();
    Ok((command, format!("https://127.0.0.1:{port}")))
}

fn write_kubeconfig(dir: &Path, url: &str, name: &str, user: &Value) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "clusters": [{ "name": "test", "cluster": {
            "server": url,
            "certificate-authority": dir.join("certificates/apiserver.crt"),
        }}],
        "users": [{ "name": "test", "user": user }],
    });
    let path = dir.join(format!("{name}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    Ok(path)
}

/// Returns a client from a kubeconfig, once the server has written the certificate that the file refers to.
async fn client_of(dir: &Path, kubeconfig: &Path) -> Result<Client> {
    let certificate = dir.join("certificates/apiserver.crt");
    until("the API server has a certificate", async || {
        let pem = std::fs::read_to_string(&certificate)?;
        // The server's own certificate and its CA's.
        ensure!(pem.matches("END CERTIFICATE").count() >= 2, "it is not all there");
        Ok(())
    })
    .await?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
    Ok(Client::try_from(config)?)
}
