//! A real API server with its etcd, on loopback.

use std::ffi::OsString;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::ca::Ca;
use super::parts::{self, Parts};
use super::process::{Process, tethered};
use super::tokens;
use super::wait::{record, until};

/// The administrator's token; the server's token file is in its temporary directory.
const ADMIN_TOKEN: &str = "admin-of-a-test";

/// How many API servers start at a time on this machine. Each keeps two cores busy for some seconds, and one
/// that takes too long gives up.
const STARTS: usize = 2;

/// A test's access to an API server in which the CRDs of `crds/` are established.
pub(crate) struct Cluster {
    client: Client,
    plane: Arc<ControlPlane>,
    /// The directory of this test's files.
    dir: PathBuf,
    /// The number of a test on a shared control plane.
    number: Option<usize>,
}

/// A running API server with its etcd.
struct ControlPlane {
    // Processes first: they must end before their directory is removed.
    api_server: Process,
    etcd: Process,
    etcd_url: String,
    /// The command that starts the API server, to restart it at the same address.
    command: Vec<OsString>,
    url: String,
    programs: Programs,
    dir: TempDir,
}

/// Deviations from the default API server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiServerOptions<'a> {
    /// A program other than the default one.
    pub(crate) program: Option<PathBuf>,
    /// Additional admission plugins.
    pub(crate) admission: &'a [&'a str],
    /// Audit all requests but those of administrators and of the API server itself ([`Cluster::audit_log`]).
    pub(crate) audit: bool,
    /// Additional arguments.
    pub(crate) arguments: &'a [&'a str],
}

/// The service cluster IP range, and the address in it at which pods reach the API server.
const SERVICE_IPS: &str = "10.96.0.0/16";
const SERVICE_IP: &str = "10.96.0.1";

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

#[allow(dead_code, reason = "not every test program uses everything")]
impl Cluster {
    /// Starts etcd and an API server for this test alone, and waits until they are ready.
    pub(crate) async fn start(parts: &Parts) -> Result<Self> {
        Self::start_with(parts, &ApiServerOptions::default()).await
    }

    /// Like [`Cluster::start`], with a customized API server.
    pub(crate) async fn start_with(parts: &Parts, options: &ApiServerOptions<'_>) -> Result<Self> {
        let (plane, client) = ControlPlane::start(parts, options).await?;
        Ok(Self { client, dir: plane.dir.path().to_owned(), plane: Arc::new(plane), number: None })
    }

    /// Returns the control plane that tests share if they only use nodes and namespaces of their own: they
    /// neither stop it nor change what other tests use, and count nothing but their own objects. The first
    /// such test starts it, the last one ends it.
    pub(crate) async fn shared(parts: &Parts) -> Result<Self> {
        static SHARED: Mutex<Weak<ControlPlane>> = Mutex::const_new(Weak::new());
        static NUMBER: AtomicUsize = AtomicUsize::new(1);
        let mut shared = SHARED.lock().await;
        let plane = match shared.upgrade() {
            Some(plane) => plane,
            None => {
                let (plane, _) = ControlPlane::start(parts, &ApiServerOptions::default()).await?;
                let plane = Arc::new(plane);
                *shared = Arc::downgrade(&plane);
                plane
            }
        };
        drop(shared);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // Short, because the path of a socket is limited to 107 characters.
        let dir = plane.dir.path().join(number.to_string());
        std::fs::create_dir(&dir)?;
        // A client of this test's own: its connections end with the test's runtime.
        let client = client_of(&plane.write_admin_kubeconfig(&dir)?).await?;
        let cluster = Self { client, plane, dir, number: Some(number) };
        tokens::namespace(&cluster.client(), &cluster.namespace()).await?;
        Ok(cluster)
    }

    /// Returns the name under which a node joins: `name` itself, unless other tests have nodes here, too.
    pub(crate) fn node_name(&self, name: &str) -> String {
        self.number.map_or_else(|| name.to_owned(), |number| format!("{name}-{number}"))
    }

    /// Returns the namespace of this test's pods.
    pub(crate) fn namespace(&self) -> String {
        self.number.map_or_else(|| "default".to_owned(), |number| format!("test-{number}"))
    }

    /// Returns a client with every right.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a directory that is removed with the cluster.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the programs that nodes run.
    pub(crate) fn programs(&self) -> &Programs {
        &self.plane.programs
    }

    /// Returns the API server's address: `127.0.0.1:40123`.
    pub(crate) fn address(&self) -> &str {
        self.plane.url.trim_start_matches("https://")
    }

    /// Returns the API server's certificate and its CA's (PEM).
    pub(crate) fn certificates(&self) -> Result<String> {
        Ok(std::fs::read_to_string(certificate(self.plane.dir.path()))?)
    }

    /// Returns the path of the administrator's kubeconfig.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join("admin.kubeconfig")
    }

    /// Writes a kubeconfig that impersonates a user and groups.
    pub(crate) fn kubeconfig_as(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let name = user.replace([':', '/'], "-");
        let who = json!({ "token": ADMIN_TOKEN, "as": user, "as-groups": groups });
        self.plane.write_kubeconfig(&self.dir, &name, &who)
    }

    /// Writes a kubeconfig with its own token.
    pub(crate) fn kubeconfig_of(&self, name: &str, token: &str) -> Result<PathBuf> {
        self.plane.write_kubeconfig(&self.dir, name, &json!({ "token": token }))
    }

    /// Returns a client with its own token.
    pub(crate) async fn client_of(&self, name: &str, token: &str) -> Result<Client> {
        client_of(&self.kubeconfig_of(name, token)?).await
    }

    /// Returns how many writes of a resource the API server has served, by its own metric: a no-op write
    /// leaves no other trace.
    pub(crate) async fn writes_of(&self, resource: &str) -> Result<u64> {
        self.requests_of(resource, &["APPLY", "PATCH", "PUT", "POST", "DELETE"]).await
    }

    /// Returns how many requests for a resource with one of these verbs the API server has served.
    pub(crate) async fn requests_of(&self, resource: &str, verbs: &[&str]) -> Result<u64> {
        let metrics = self.text_of("/metrics").await?;
        let label = format!("resource=\"{resource}\"");
        let verbs: Vec<String> = verbs.iter().map(|verb| format!("verb=\"{verb}\"")).collect();
        let counted = metrics.lines().filter(|line| {
            line.starts_with("apiserver_request_total{")
                && line.contains(&label)
                && verbs.iter().any(|verb| line.contains(verb))
        });
        let counts = counted.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<u64>());
        Ok(counts.sum::<Result<u64, _>>()?)
    }

    /// Returns the path of the audit log, one event per line.
    pub(crate) fn audit_log(&self) -> PathBuf {
        self.dir.join(AUDIT_LOG)
    }

    /// Returns the API server's metrics in the Prometheus text format.
    pub(crate) async fn metrics(&self) -> Result<String> {
        let request = tonic::codegen::http::Request::get("/metrics").body(Vec::new())?;
        Ok(self.new_client().await?.request_text(request).await?)
    }

    /// Returns a client with every right and its own connections. The API server closes connections that were
    /// idle for 90 s, and a client may detect that only at its next request.
    pub(crate) async fn new_client(&self) -> Result<Client> {
        client_of(&self.admin_kubeconfig()).await
    }

    /// Returns etcd's client URL.
    pub(crate) fn etcd_url(&self) -> &str {
        &self.plane.etcd_url
    }

    /// Sends the API server a signal: `STOP` freezes it, `CONT` resumes it.
    pub(crate) fn signal_api_server(&self, name: &str) -> Result<()> {
        ensure!(self.number.is_none(), "other tests use this control plane");
        self.plane.api_server.signal(name)
    }

    /// Sends etcd a signal.
    pub(crate) fn signal_etcd(&self, name: &str) -> Result<()> {
        ensure!(self.number.is_none(), "other tests use this control plane");
        self.plane.etcd.signal(name)
    }

    /// Kills the API server; its data is in etcd.
    pub(crate) fn kill_api_server(&mut self) -> Result<()> {
        self.own()?.api_server.kill()
    }

    /// Restarts the killed API server and waits until it is ready.
    pub(crate) async fn restart_api_server(&mut self) -> Result<()> {
        let client = self.client();
        let plane = self.own()?;
        let _start = may_start().await?;
        plane.api_server = start_api_server(plane.dir.path(), &plane.command)?;
        wait_until_ready(&mut plane.api_server, &client).await
    }

    /// Fails if other tests use the control plane.
    fn own(&mut self) -> Result<&mut ControlPlane> {
        Arc::get_mut(&mut self.plane).context("other tests use this control plane")
    }

    /// Returns the response body to an administrator's GET.
    pub(crate) async fn text_of(&self, path: &str) -> Result<String> {
        text_of(&self.client, path).await
    }

    /// Installs the CRDs of `crds/` and waits until they are established.
    pub(crate) async fn apply_crds(&self) -> Result<()> {
        apply_crds(&self.client).await
    }
}

impl ControlPlane {
    /// Starts it with the CRDs; also returns an administrator's client.
    async fn start(parts: &Parts, options: &ApiServerOptions<'_>) -> Result<(Self, Client)> {
        install_tls();
        let mut dir = tempfile::Builder::new().prefix("numacast-").tempdir()?;
        // The logs are needed to debug a failure.
        dir.disable_cleanup(std::env::var_os("NUMACAST_KEEP").is_some());
        let programs = Programs { kubelet: parts.program("kubelet"), fakenode: parts.program("fakenode") };
        let _start = may_start().await?;
        let (etcd, etcd_url) = start_etcd(parts, dir.path()).await?;
        let (command, url) = api_server_command(parts, dir.path(), &etcd_url, options)?;
        let api_server = start_api_server(dir.path(), &command)?;
        let mut plane = Self { api_server, etcd, etcd_url, command, url, programs, dir };
        let client = client_of(&plane.write_admin_kubeconfig(plane.dir.path())?).await?;
        wait_until_ready(&mut plane.api_server, &client).await?;
        apply_crds(&client).await?;
        Ok((plane, client))
    }

    fn write_admin_kubeconfig(&self, dir: &Path) -> Result<PathBuf> {
        self.write_kubeconfig(dir, "admin", &json!({ "token": ADMIN_TOKEN }))
    }

    fn write_kubeconfig(&self, dir: &Path, name: &str, user: &Value) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
            "clusters": [{ "name": "test", "cluster": {
                "server": self.url,
                "certificate-authority": certificate(self.dir.path()),
            }}],
            "users": [{ "name": "test", "user": user }],
        });
        let path = dir.join(format!("{name}.kubeconfig"));
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}

/// Waits until fewer than [`STARTS`] API servers are starting; holds a place until it is dropped. Test programs
/// run at the same time, so the places are locked files.
async fn may_start() -> Result<File> {
    let begun = Instant::now();
    loop {
        for place in 0..STARTS {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("api-server-starts-{place}"));
            let file = File::options().create(true).append(true).open(path)?;
            if file.try_lock().is_ok() {
                record("other API servers start", begun.elapsed());
                return Ok(file);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until an API server is ready.
pub(crate) async fn wait_until_ready(api_server: &mut Process, client: &Client) -> Result<()> {
    until("the API server is ready", async || {
        api_server.still_runs()?;
        let body = text_of(client, "/readyz").await?;
        ensure!(body == "ok", "it responds {body}");
        Ok(())
    })
    .await
}

async fn text_of(client: &Client, path: &str) -> Result<String> {
    let request = tonic::codegen::http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

async fn apply_crds(client: &Client) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
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

/// Starts etcd and waits until it accepts connections: an API server gives up after 20 s without one.
pub(crate) async fn start_etcd(parts: &Parts, dir: &Path) -> Result<(Process, String)> {
    let port = free_port()?;
    let url = format!("http://127.0.0.1:{port}");
    let peers = format!("http://127.0.0.1:{}", free_port()?);
    let mut command = tethered(parts.program("etcd"));
    command.arg("--unsafe-no-fsync").arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "warn"]);
    let mut etcd = Process::start("etcd", dir, command)?;
    until("etcd accepts connections", async || {
        etcd.still_runs()?;
        TcpStream::connect(("127.0.0.1", port))?;
        Ok(())
    })
    .await?;
    Ok((etcd, url))
}

/// Starts an API server with this program and these arguments.
pub(crate) fn start_api_server(dir: &Path, command: &[OsString]) -> Result<Process> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut command = tethered(program);
    command.args(arguments);
    Process::start("kube-apiserver", dir, command)
}

/// Returns the API server's program and arguments, and its URL.
fn api_server_command(
    parts: &Parts,
    dir: &Path,
    etcd: &str,
    options: &ApiServerOptions<'_>,
) -> Result<(Vec<OsString>, String)> {
    // For the tokens of service accounts.
    let (key, public_key) = (dir.join("service-accounts.key"), dir.join("service-accounts.pub"));
    let pair = KeyPair::generate()?;
    std::fs::write(&key, pair.serialize_pem())?;
    std::fs::write(&public_key, pair.public_key_pem())?;
    let tls_key = write_certificate(dir)?;
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
    let port = free_port()?;
    let with = |flag: &str, path: &Path| format!("{flag}={}", path.display());
    let mut arguments = vec![
        format!("--etcd-servers={etcd}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        with("--tls-cert-file", &certificate(dir)),
        with("--tls-private-key-file", &tls_key),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        with("--service-account-key-file", &public_key),
        with("--service-account-signing-key-file", &key),
        format!("--service-cluster-ip-range={SERVICE_IPS}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        format!(
            "--enable-admission-plugins={}",
            [&["NodeRestriction"], options.admission].concat().join(",")
        ),
        // No controller creates the service accounts that this plugin would require.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        with("--token-auth-file", &tokens),
        "--allow-privileged".to_owned(),
    ];
    if options.audit {
        let policy = dir.join("audit-policy.json");
        std::fs::write(&policy, AUDIT_POLICY)?;
        arguments.push(with("--audit-policy-file", &policy));
        arguments.push(with("--audit-log-path", &dir.join(AUDIT_LOG)));
    }
    arguments.extend(options.arguments.iter().map(|argument| (*argument).to_owned()));
    let program = options.program.clone().unwrap_or_else(|| parts.program("kube-apiserver"));
    let program = program.into_os_string();
    let command = std::iter::once(program).chain(arguments.into_iter().map(OsString::from)).collect();
    Ok((command, format!("https://127.0.0.1:{port}")))
}

/// The API server's certificate and its CA's, in its directory.
fn certificate(dir: &Path) -> PathBuf {
    dir.join("apiserver.crt")
}

/// Writes a certificate of this API server alone and returns the file of its key. The server would make one
/// with RSA keys, at half a second of CPU time.
fn write_certificate(dir: &Path) -> Result<PathBuf> {
    let ca = Ca::new()?;
    let (own, key) = ca.issue(&["127.0.0.1", SERVICE_IP])?;
    std::fs::write(certificate(dir), own + &ca.pem())?;
    let file = dir.join("apiserver.key");
    std::fs::write(&file, key)?;
    Ok(file)
}

/// Returns a client of a kubeconfig.
pub(crate) async fn client_of(kubeconfig: &Path) -> Result<Client> {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &options).await?;
    Ok(Client::try_from(config)?)
}
