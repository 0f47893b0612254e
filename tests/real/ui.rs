//! `numacast ui` in a real browser, with the objects of a real API server and a real kubelet.

mod in_cluster;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use numacast::nrt::Version;
use serde_json::json;

use crate::support::agent::Agent;
use crate::support::browser::Browser;
use crate::support::process::tethered;
use crate::support::ui::Ui;
use crate::support::wait::until;
use crate::support::{Cluster, Needs, Parts, RealNode, pod};

/// WebDriver's characters of keys.
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const LEFT: &str = "\u{e012}";

/// Shows a cluster to the admin.
fn show(cluster: &Cluster) -> Result<Ui> {
    Ui::of(Path::new(env!("CARGO_BIN_EXE_numacast")), &cluster.admin_kubeconfig(), &[])
}

impl Ui {
    /// Returns address and port.
    fn address(&self) -> Result<&str> {
        let rest = self.url.strip_prefix("http://").context("the scheme")?;
        Ok(rest.split_once('/').context("the path")?.0)
    }

    fn token(&self) -> Result<&str> {
        Ok(self.url.split_once("token=").context("the token")?.1)
    }

    /// Sends a request, and returns the response.
    fn request(&self, line: &str, headers: &[(&str, &str)]) -> Result<String> {
        let mut stream = TcpStream::connect(self.address()?)?;
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        stream.write_all(format!("{line} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n").as_bytes())?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        // The files of the page are compressed.
        Ok(String::from_utf8_lossy(&response).into_owned())
    }
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn a_stranger_gets_nothing() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let ui = show(&cluster)?;
    let host = ui.address()?.to_owned();
    let port = host.rsplit(':').next().context("the port")?;
    let cookie = format!("numacast-{port}={}", ui.token()?);
    let paths =
        ["/", "/app.js", "/api/events", "/api/pending", "/api/nodes/w", "/api/fit?pod=cpu=1", "/nothing"];

    let of = |path: &str, headers: &[(&str, &str)]| ui.request(&format!("GET {path}"), headers);
    for path in paths.iter().filter(|path| **path != "/api/events") {
        let allowed = of(path, &[("Host", &host), ("Cookie", &cookie)])?;
        ensure!(!["403", "405"].contains(&status(&allowed)), "{path}: {allowed}");
        ensure!(allowed.contains("content-security-policy: default-src 'none'"), "{path}: {allowed}");
    }
    let origin = format!("http://{host}");
    let with_port = |name: &str| format!("{name}:{port}");
    let evil = with_port("evil.example");
    let wrong = format!("numacast-{port}={}", "0".repeat(ui.token()?.len()));
    for path in paths {
        for (what, headers) in [
            ("no token", vec![("Host", &*host)]),
            ("a wrong token", vec![("Host", &*host), ("Cookie", &*wrong)]),
            ("another cookie", vec![("Host", &*host), ("Cookie", "numacast-1=1")]),
            ("another name", vec![("Host", &*evil), ("Cookie", &*cookie)]),
            ("no name", vec![("Cookie", &*cookie)]),
            ("another page", vec![("Host", &*host), ("Cookie", &*cookie), ("Origin", "http://evil.example")]),
            ("a page without origin", vec![("Host", &*host), ("Cookie", &*cookie), ("Origin", "null")]),
            ("another site", vec![("Host", &*host), ("Cookie", &*cookie), ("Sec-Fetch-Site", "cross-site")]),
        ] {
            let refused = of(path, &headers)?;
            ensure!(["403", "400"].contains(&status(&refused)), "{path} with {what}: {refused}");
            ensure!(!refused.to_lowercase().contains("set-cookie"), "{path} with {what}: {refused}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let headers =
                [("Host", &*host), ("Cookie", &*cookie), ("Origin", &*origin), ("Content-Length", "0")];
            let refused = ui.request(&format!("{method} {path}"), &headers)?;
            ensure!(status(&refused) == "405", "{method} {path}: {refused}");
        }
    }
    let wrong = of("/?token=00", &[("Host", &host)])?;
    ensure!(status(&wrong) == "403" && !wrong.to_lowercase().contains("set-cookie"), "{wrong}");
    let right = of(&format!("/?token={}", ui.token()?), &[("Host", &host)])?;
    ensure!(status(&right) == "303" && right.contains("HttpOnly; SameSite=Lax"), "{right}");
    Ok(())
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_refused() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let mut command = tethered(env!("CARGO_BIN_EXE_numacast"));
    command.args(["ui", "--no-open", "--addr", "0.0.0.0:0", "--kubeconfig"]).arg(cluster.admin_kubeconfig());
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let error = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && error.contains("0.0.0.0:0 is not a loopback address"), "{error}");
    Ok(())
}

/// A Node that exists only in the API server.
async fn add_node(cluster: &Cluster, name: &str) -> Result<()> {
    let node = json!({"metadata": {"name": name, "labels": {"example.com/rack": "far"}}});
    let nodes: Api<Node> = Api::all(cluster.client());
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    Ok(())
}

#[tokio::test]
async fn the_page_follows_a_real_kubelet() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::Kubelet)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let Some(browser) = Browser::start(cluster.dir()).await? else { return Ok(()) };
    let setup = RealNode::on("two-by-eight")?.kubelet("topologyManagerPolicy", "single-numa-node".into());
    let node = setup.start(&cluster).await?;
    // The API server adds a taint until a controller removes it, which does not run here.
    let untainted = Patch::Merge(json!({"spec": {"taints": null}}));
    Api::<Node>::all(node.client()).patch(node.name(), &PatchParams::default(), &untainted).await?;
    let mut agent = Agent::start(&node, &[])?;
    add_node(&cluster, "ghost").await?;
    let ui = show(&cluster)?;
    let origin = format!("http://{}", ui.address()?);
    let name = node.name();

    browser.look(1400, 900, false).await?;
    browser.open(&ui.url).await?;
    let summary = "document.querySelector('#summary').textContent";
    browser.wait_for(&format!("{summary}.startsWith('2 nodes')")).await?;
    browser.wait_for(&format!("{summary}.includes('1 no object')")).await?;
    let address = browser.run("return location.href").await?;
    ensure!(address == format!("{origin}/"), "the address can be shared: {address}");

    // A pod appears by itself.
    node.run(pod("db").cpus(4).memory("1Gi")).await?;
    browser.open(&format!("{origin}/#node={name}")).await?;
    let panel = "document.querySelector('#panel').innerText";
    browser.wait_for(&format!("{panel}.includes('db') && {panel}.includes('4 cpu')")).await?;
    node.run(pod("late").cpus(2).memory("1Gi")).await?;
    browser.wait_for(&format!("{panel}.includes('late')")).await?;
    agent.still_runs()?;
    let found = browser.accessibility().await?;
    ensure!(!found.iter().any(|one| is_serious(one)), "{found:#?}");

    // The pod: where it is, and why.
    let link = format!("a[href*='pod={}%2Fdb']", node.namespace());
    browser.click(&link).await?;
    browser.wait_for(&format!("{panel}.includes('aligned: the policy single-numa-node')")).await?;
    browser.keys(ESCAPE).await?;
    browser.wait_for("document.querySelector('#panel').hidden").await?;

    // Room for a pod: the machine has 16 CPUs in two zones, of which 6 are taken and some are reserved.
    browser.keys("/3 cpus and 1Gi").await?;
    let found = "document.querySelector('#found').innerText";
    browser.wait_for(&format!("{found}.includes('fits on one zone on 1 of 2 nodes')")).await?;
    browser.keys(ENTER).await?;
    browser.wait_for(&format!("{panel}.includes('Where it fits') && {panel}.includes('{name}')")).await?;
    browser.keys(ESCAPE).await?;
    browser.run("document.querySelector('#query').value = ''; document.querySelector('#query').dispatchEvent(new Event('input'))").await?;

    // A node that is found by the label of its rack, opened with the keyboard.
    browser.run("document.querySelector('#query').focus()").await?;
    browser.keys("far").await?;
    browser.wait_for(&format!("{found}.includes('1 node found')")).await?;
    browser.run("document.querySelector('#cursor').focus()").await?;
    let active = "document.querySelector('#cursor').getAttribute('aria-label')";
    browser.wait_for(&format!("{active}.startsWith('two-by-eight, up to date')")).await?;
    browser.keys(LEFT).await?;
    browser.wait_for(&format!("{active}.startsWith('ghost, no object')")).await?;
    browser.keys(ENTER).await?;
    browser.wait_for("!document.querySelector('#panel').hidden").await?;
    browser.keys(ESCAPE).await?;

    // A pod that waits.
    let pods: Api<Pod> = Api::namespaced(cluster.client(), node.namespace());
    let limits = json!({"cpu": "12", "memory": "1Gi"});
    let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
    let large =
        json!({"metadata": {"name": "large"}, "spec": {"schedulerName": "none", "containers": [container]}});
    pods.create(&PostParams::default(), &serde_json::from_value(large)?).await?;
    browser.click("#pending").await?;
    browser.wait_for(&format!("{panel}.includes('large') && {panel}.includes('fits on no node')")).await?;
    let found = browser.accessibility().await?;
    ensure!(!found.iter().any(|one| is_serious(one)), "{found:#?}");

    // The agent ends: nothing says so here, since no DaemonSet runs it. The object is deleted: the page says so.
    drop(agent);
    let objects: Api<DynamicObject> = Api::all_with(cluster.client(), &Version::V1alpha2.resource());
    until("the deleted object is gone from the page", async || {
        objects.delete(name, &DeleteParams::default()).await.ok();
        let text = browser.text("#summary").await?;
        ensure!(text.contains("2 no object"), "{text}");
        Ok(())
    })
    .await?;

    let requests = browser.requests().await?;
    ensure!(requests.len() > 5, "{requests:?}");
    let elsewhere: Vec<&String> = requests.iter().filter(|url| !url.starts_with(&origin)).collect();
    ensure!(
        elsewhere.iter().all(|url| url.starts_with("data:") || url.starts_with("chrome:")),
        "{elsewhere:?}"
    );
    let errors = browser.errors().await?;
    ensure!(errors.iter().all(|error| !error.contains("Content Security Policy")), "{errors:?}");

    // It ends, and starts again with another token.
    let address = ui.address()?.to_owned();
    drop(ui);
    let problems = "document.querySelector('#problems').innerText";
    browser.wait_for(&format!("{problems}.includes('The connection is lost')")).await?;
    let kubeconfig = cluster.admin_kubeconfig();
    let arguments = ["ui", "--addr", &address, "--kubeconfig", kubeconfig.to_str().context("the path")?];
    let ui = Ui::start(Path::new(env!("CARGO_BIN_EXE_numacast")), &arguments)?;
    browser.wait_for(&format!("{problems}.includes('open the address that `numacast ui` printed')")).await?;
    // Another tab has opened the new address.
    browser.run_async(&format!("await fetch({:?})", ui.url)).await?;
    browser.wait_for("document.querySelector('#problems').hidden").await?;
    browser.wait_for(&format!("{summary}.startsWith('2 nodes')")).await
}

fn is_serious(finding: &str) -> bool {
    finding.starts_with("serious") || finding.starts_with("critical")
}

/// The pictures of the documents, and what is shown in them: the address after `#`, and an expression that is true once all
/// of it is there.
const PICTURES: [(&str, &str, &str); 5] = [
    (
        "ui-fleet",
        "group=example.com/rack",
        "(text => text.includes('stale') && !text.includes('no object'))(document.querySelector('#summary').innerText)",
    ),
    (
        "ui-fit",
        "q=4+cpu+4Gi+1+gpu&colour=example.com/gpu",
        "document.querySelector('#found').innerText.includes('fits on')",
    ),
    ("ui-node", "node=node-2", "document.querySelectorAll('.chip').length > 2"),
    ("ui-pod", "", "document.querySelector('.verdict')"),
    ("ui-pending", "view=pending", "document.querySelector('#content li')"),
];

/// Searches, and how the page reads them: text to look for, or a pod.
const SEARCHES: [(&str, &str); 12] = [
    ("node-12", "text node-12"),
    ("rack 4", "text rack 4"),
    ("8 racks", "text 8 racks"),
    ("8 CPUs and 1 GPU on one zone", "pod cpu=8,nvidia.com/gpu=1"),
    ("4 cpu 4Gi 1 gpu", "pod cpu=4,memory=4Gi,nvidia.com/gpu=1"),
    ("16 GiB, 2 cores", "pod memory=16Gi,cpu=2"),
    ("2 cpu 16Gi memory", "pod cpu=2,memory=16Gi"),
    ("500m cpu", "pod cpu=500m"),
    ("cpu=3 nvidia.com/gpu=2", "pod cpu=3,nvidia.com/gpu=2"),
    ("hugepages-1Gi=2Gi", "pod hugepages-1Gi=2Gi"),
    ("example.com/unknown=1", "pod example.com/unknown=1"),
    ("16Gi 2", "text 16gi 2"),
];

fn has_processes(group: u32) -> Result<bool> {
    Ok(Command::new("pgrep")
        .args(["-r", "R,S,D", "-g", &group.to_string()])
        .stdout(Stdio::null())
        .status()?
        .success())
}

#[tokio::test]
async fn a_search_is_text_or_a_pod() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::shared(&parts).await?;
    let dir = tempfile::tempdir()?;
    let Some(browser) = Browser::start(dir.path()).await? else { return Ok(()) };
    let ui = show(&cluster)?;
    browser.open(&ui.url).await?;
    for (search, expected) in SEARCHES {
        let script = format!(
            "const {{ readSearch }} = await import('/text.js');
            const resources = ['cpu', 'memory', 'hugepages-1Gi', 'hugepages-2Mi', 'nvidia.com/gpu'];
            const {{ pod, text }} = readSearch({search:?}, resources);
            return pod ? `pod ${{pod}}` : `text ${{text}}`;"
        );
        let found = browser.run_async(&script).await?;
        ensure!(found == expected, "{search}: {found}");
    }
    let group = browser.group();
    ensure!(has_processes(group)?, "the browser is not in its group");
    drop(browser);
    until("no process of the browser is left", async || {
        ensure!(!has_processes(group)?, "the group has processes");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_simulated_day_is_shown_with_its_faults() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(browser) = Browser::start(dir.path()).await? else { return Ok(()) };
    let writes = std::env::var_os("NUMACAST_WRITE_DOCS").is_some();
    // Slow: what a link leads to is still there when it is opened.
    let arguments = ["demo", "--ui", "--seed", "7", "--speed", "0.5"];
    let fleet = Ui::start(Path::new(env!("CARGO_BIN_EXE_numacast")), &arguments)?;
    let origin = format!("http://{}/", fleet.address()?);
    browser.look(1280, 760, false).await?;
    browser.open(&fleet.url).await?;
    let summary = "document.querySelector('#summary').innerText";
    browser.wait_for(&format!("{summary}.startsWith('24 nodes')")).await?;
    // Faults last for some steps: each is there for a moment.
    for status in ["stale", "withheld"] {
        browser.wait_for(&format!("{summary}.includes('{status}')")).await?;
    }
    for (name, fragment, is_there) in PICTURES {
        let fragment = match name {
            "ui-pod" => {
                browser
                    .run("return document.querySelector('#content a[href*=\"pod=\"]').hash.slice(1)")
                    .await?
            }
            _ => json!(fragment),
        };
        browser.look(1280, 760, name == "ui-node").await?;
        browser.open(&format!("{origin}#{}", fragment.as_str().unwrap_or_default())).await?;
        browser.wait_for(is_there).await?;
        let file = format!("{}/docs/images/{name}.png", env!("CARGO_MANIFEST_DIR"));
        match writes {
            true => std::fs::write(&file, browser.picture().await?)?,
            false => ensure!(std::fs::read(&file)?.starts_with(b"\x89PNG"), "{file} is no picture"),
        }
        let found = browser.accessibility().await?;
        ensure!(!found.iter().any(|one| is_serious(one)), "{name}: {found:#?}");
        if name == "ui-node" {
            // The link to a pod is needed for the next one.
            browser.wait_for("document.querySelector('#content a[href*=\"pod=\"]')").await?;
        }
    }
    Ok(())
}
