//! The page that the controller serves, with the rights of the chart: what a token may read decides the API server.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{add_node, is_serious, status};
use crate::support::browser::Browser;
use crate::support::ca::Ca;
use crate::support::chart::{Chart, RELEASE, RIGHTS};
use crate::support::cluster::free_port;
use crate::support::process::{Process, tethered};
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, tokens};

const CONTROLLER: &str = "numacast-controller";

/// A controller that serves the page, and a client that trusts its certificate.
struct Page {
    _controller: Process,
    port: u16,
    tls: TlsConnector,
}

impl Page {
    async fn start(cluster: &Cluster) -> Result<Self> {
        let admin = cluster.client();
        let token = tokens::request(&admin, RELEASE, CONTROLLER, None).await?;
        let ca = Ca::new()?;
        let (certificate, key) = ca.issue(&["localhost"])?;
        std::fs::write(cluster.dir().join("tls.crt"), certificate)?;
        std::fs::write(cluster.dir().join("tls.key"), key)?;
        let port = free_port()?;
        let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
        command.args(["controller", "--namespace", RELEASE, "--metrics-address", "none"]);
        command.args(["--health-address", "none", "--ui-addr", &format!("127.0.0.1:{port}")]);
        command.arg("--ui-tls-dir").arg(cluster.dir());
        command.arg("--kubeconfig").arg(cluster.kubeconfig_of(CONTROLLER, &token)?);
        let mut controller = Process::start("controller", cluster.dir(), command)?;
        until("the page is served", async || {
            controller.still_runs()?;
            Ok(TcpStream::connect(("127.0.0.1", port)).await?)
        })
        .await?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.der())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { _controller: controller, port, tls: TlsConnector::from(Arc::new(config)) })
    }

    /// Sends a request, and returns the response.
    async fn request(&self, line: &str, headers: &str, body: &str) -> Result<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let mut stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: localhost:{}\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n",
            self.port
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        let mut response = Vec::new();
        // A server may close without a word of TLS.
        let _ = stream.read_to_end(&mut response).await;
        Ok(String::from_utf8_lossy(&response).into_owned())
    }

    async fn with_token(&self, path: &str, token: &str) -> Result<String> {
        self.request(&format!("GET {path}"), &format!("Authorization: Bearer {token}\r\n"), "").await
    }

    async fn log_in(&self, token: &str) -> Result<String> {
        let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
        self.request("POST /login", kind, &format!("token={token}")).await
    }
}

/// Creates a service account, with a role for the page if `role` is given, and returns its token.
async fn account(client: &Client, name: &str, role: Option<&str>) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), RELEASE);
    let account = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    if let Some(role) = role {
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": RELEASE}],
        }))?;
        Api::all(client.clone()).create(&PostParams::default(), &binding).await?;
    }
    tokens::request(client, RELEASE, name, None).await
}

#[tokio::test]
async fn the_api_server_says_who_may_see_the_page() -> Result<()> {
    let Some(parts) = Parts::with_helm(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let chart = Chart::render(&parts, &json!({"controller": {"ui": {"secretName": "ui"}}}))?;
    let admin = cluster.client();
    tokens::namespace(&admin, RELEASE).await?;
    chart.install(&admin, &RIGHTS).await?;
    chart.install(&admin, &["Lease"]).await?;
    let viewer = account(&admin, "viewer", Some("numacast-ui-viewer")).await?;
    let stranger = account(&admin, "stranger", None).await?;
    let page = Page::start(&cluster).await?;
    add_node(&cluster, "worker").await?;

    // RBAC becomes effective a little later.
    until("the viewer is accepted", async || {
        let seen = page.with_token("/api/pending", &viewer).await?;
        ensure!(status(&seen) == "200" && seen.ends_with(r#"{"pods":[]}"#), "{seen}");
        Ok(())
    })
    .await?;
    // Nobody has the page open: the nodes are listed for the question.
    let worker = page.with_token("/api/nodes/worker", &viewer).await?;
    ensure!(status(&worker) == "200" && worker.contains("noObject"), "{worker}");
    let missing = page.with_token("/api/nodes/missing", &viewer).await?;
    ensure!(status(&missing) == "404" && missing.contains("there is no node missing"), "{missing}");
    let nobody = page.request("GET /", "", "").await?;
    ensure!(status(&nobody) == "200" && nobody.contains("Log in") && !nobody.contains("app.js"), "{nobody}");
    for path in
        ["/app.js", "/api/events", "/api/pending", "/api/nodes/worker", "/api/pods/a/b", "/api/fit?pod=cpu=1"]
    {
        let nobody = page.request(&format!("GET {path}"), "", "").await?;
        ensure!(status(&nobody) == "401", "{path}: {nobody}");
        let unknown = page.with_token(path, "made-up").await?;
        ensure!(status(&unknown) == "401", "{path}: {unknown}");
        let refused = page.with_token(path, &stranger).await?;
        let why = "you may not list noderesourcetopologies";
        ensure!(status(&refused) == "403" && refused.contains(why), "{path}: {refused}");
        let evil = format!("Authorization: Bearer {viewer}\r\nOrigin: https://evil.example\r\n");
        let refused = page.request(&format!("GET {path}"), &evil, "").await?;
        ensure!(status(&refused) == "403", "{path}: {refused}");
        for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let token = format!("Authorization: Bearer {viewer}\r\n");
            let refused = page.request(&format!("{method} {path}"), &token, "").await?;
            ensure!(status(&refused) == "405", "{method} {path}: {refused}");
        }
    }
    for token in ["", "made-up", &stranger] {
        let refused = page.log_in(token).await?;
        ensure!(!refused.to_lowercase().contains("set-cookie"), "{token}: {refused}");
    }
    let again = page.request("GET /", &format!("Cookie: __Host-numacast={stranger}\r\n"), "").await?;
    let why = "you may not list noderesourcetopologies";
    ensure!(status(&again) == "403" && again.contains("Log in") && again.contains(why), "{again}");
    let reloaded = page.request("GET /login", "", "").await?;
    ensure!(status(&reloaded) == "303" && reloaded.contains("location: /\r\n"), "{reloaded}");
    let welcome = page.log_in(&viewer).await?;
    let cookie = format!("set-cookie: __Host-numacast={viewer}; HttpOnly; Secure; SameSite=Lax; Path=/");
    ensure!(status(&welcome) == "303" && welcome.contains(&cookie), "{welcome}");
    let mut plain = TcpStream::connect(("127.0.0.1", page.port)).await?;
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    ensure!(!answer.starts_with(b"HTTP"), "without TLS: {}", String::from_utf8_lossy(&answer));

    let Some(browser) = Browser::start(cluster.dir()).await? else { return Ok(()) };
    browser.look(1280, 760, false).await?;
    browser.open(&format!("https://localhost:{}/#group=example.com/rack", page.port)).await?;
    browser.wait_for("document.querySelector('#token')").await?;
    let found = browser.accessibility().await?;
    ensure!(!found.iter().any(|one| is_serious(one)), "{found:#?}");
    browser.run("document.querySelector('#token').focus()").await?;
    browser.keys(&format!("{viewer}\u{e007}")).await?;
    browser.wait_for("document.querySelector('#summary')?.textContent.startsWith('1 node')").await?;
    let group = browser.run("return document.querySelector('#group').value").await?;
    ensure!(group == "example.com/rack", "what was to be seen is kept: {group}");
    let errors = browser.errors().await?;
    ensure!(errors.iter().all(|error| !error.contains("Content Security Policy")), "{errors:?}");
    Ok(())
}
