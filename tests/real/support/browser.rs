//! A real browser: Debian's Chromium without a window, driven by WebDriver.
//!
//! Commands: <https://www.w3.org/TR/webdriver2/>; the log of requests is Chromium's own.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::cluster::free_port;
use super::parts::fetched;
use super::process::{Process, tethered};
use super::wait::until;

/// The key in WebDriver's references to elements.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A running browser with one page. Its driver leads the process group of all that it starts.
pub(crate) struct Browser {
    driver: Process,
    http: Client<HttpConnector, Full<Bytes>>,
    session: String,
    axe: String,
}

impl Browser {
    /// Starts a browser; its files are below `dir`. `None`: it cannot run here, which is printed once, and an error under
    /// `CI=true`.
    pub(crate) async fn start(dir: &Path) -> Result<Option<Self>> {
        let Some(parts) = fetched(&["chromedriver", "axe"])? else { return Ok(None) };
        let port = free_port()?;
        let mut command = tethered(parts.join("chromedriver"));
        command.arg(format!("--port={port}")).env("HOME", dir).env("TMPDIR", dir).process_group(0);
        let mut driver = Process::start("chromedriver", dir, command)?;
        let http = Client::builder(TokioExecutor::new()).build_http();
        let address = format!("http://127.0.0.1:{port}");
        until("chromedriver answers", async || {
            driver.still_runs()?;
            call(&http, Method::GET, &format!("{address}/status"), None).await
        })
        .await?;
        // Root may not use the sandbox.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        let capabilities = json!({"alwaysMatch": {
            "acceptInsecureCerts": true,
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }});
        let capabilities = Some(json!({"capabilities": capabilities}));
        let session = call(&http, Method::POST, &format!("{address}/session"), capabilities).await?;
        let session = session["sessionId"].as_str().context("no session")?.to_owned();
        let axe = std::fs::read_to_string(parts.join("axe"))?;
        Ok(Some(Self { driver, http, session: format!("{address}/session/{session}"), axe }))
    }

    /// Returns the id of the group of its processes.
    pub(crate) fn group(&self) -> u32 {
        self.driver.id()
    }

    async fn command(&self, path: &str, body: Value) -> Result<Value> {
        call(&self.http, Method::POST, &format!("{}{path}", self.session), Some(body)).await
    }

    /// Calls a command of Chromium's own protocol.
    async fn chromium(&self, name: &str, params: Value) -> Result<Value> {
        self.command("/goog/cdp/execute", json!({"cmd": name, "params": params})).await
    }

    /// Sets the size of the page and whether it is dark.
    pub(crate) async fn look(&self, width: u32, height: u32, dark: bool) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.chromium("Emulation.setDeviceMetricsOverride", metrics).await?;
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.chromium("Emulation.setEmulatedMedia", media).await?;
        Ok(())
    }

    /// Runs a script in each page that is opened from now on, before the page's own.
    pub(crate) async fn before_scripts(&self, script: &str) -> Result<()> {
        self.chromium("Page.addScriptToEvaluateOnNewDocument", json!({"source": script})).await.map(drop)
    }

    /// Opens an address.
    pub(crate) async fn open(&self, url: &str) -> Result<()> {
        self.command("/url", json!({"url": url})).await.map(drop)
    }

    /// Runs the body of a function in the page, and returns its result.
    pub(crate) async fn run(&self, script: &str) -> Result<Value> {
        self.command("/execute/sync", json!({"script": script, "args": []})).await
    }

    /// Runs the body of an asynchronous function in the page, and returns its result.
    pub(crate) async fn run_async(&self, script: &str) -> Result<Value> {
        let script = format!(
            "const done = arguments[arguments.length - 1]; (async () => {{ {script} }})().then(done, (error) => done(`failed: ${{error}}`));"
        );
        self.command("/execute/async", json!({"script": script, "args": []})).await
    }

    /// Waits until an expression is true in the page.
    pub(crate) async fn wait_for(&self, expression: &str) -> Result<()> {
        until(expression, async || {
            let found = self.run(&format!("return Boolean({expression})")).await?;
            let text = async || self.run("return document.body.innerText.slice(0, 2000)").await;
            ensure!(found == true, "the page shows {}", text().await?);
            Ok(())
        })
        .await
    }

    /// Returns the text of an element.
    pub(crate) async fn text(&self, selector: &str) -> Result<String> {
        let text = self.run(&format!("return document.querySelector({selector:?})?.innerText ?? ''")).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    async fn find(&self, selector: &str) -> Result<String> {
        let found = self.command("/element", json!({"using": "css selector", "value": selector})).await?;
        Ok(found[ELEMENT].as_str().with_context(|| format!("no element {selector}"))?.to_owned())
    }

    /// Clicks an element, as a mouse does.
    pub(crate) async fn click(&self, selector: &str) -> Result<()> {
        let id = self.find(selector).await?;
        self.command(&format!("/element/{id}/click"), json!({})).await.map(drop)
    }

    /// Clicks at a point of the page.
    pub(crate) async fn click_at(&self, x: u32, y: u32) -> Result<()> {
        let actions = json!([
            {"type": "pointerMove", "duration": 0, "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]);
        let mouse = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": actions});
        self.command("/actions", json!({"actions": [mouse]})).await.map(drop)
    }

    /// Types into what has the focus. Special keys are WebDriver's characters.
    pub(crate) async fn keys(&self, text: &str) -> Result<()> {
        let press =
            |key: char| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let actions: Vec<Value> = text.chars().flat_map(press).collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.command("/actions", json!({"actions": [keyboard]})).await.map(drop)
    }

    /// Returns a picture of the page, as PNG.
    pub(crate) async fn picture(&self) -> Result<Vec<u8>> {
        let picture = call(&self.http, Method::GET, &format!("{}/screenshot", self.session), None).await?;
        Ok(serde_json::from_value::<ByteString>(picture)?.0)
    }

    /// Returns the addresses of the requests that were made since the last call.
    pub(crate) async fn requests(&self) -> Result<Vec<String>> {
        let entries = self.command("/se/log", json!({"type": "performance"})).await?;
        let mut urls = Vec::new();
        for entry in entries.as_array().into_iter().flatten() {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap_or("null"))?;
            let message = &message["message"];
            if message["method"] == "Network.requestWillBeSent" {
                urls.push(message["params"]["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
        }
        Ok(urls)
    }

    /// Returns the errors that the browser has printed since the last call, such as violations of the content policy.
    pub(crate) async fn errors(&self) -> Result<Vec<String>> {
        let entries = self.command("/se/log", json!({"type": "browser"})).await?;
        let text = |entry: &Value| entry["message"].as_str().unwrap_or_default().to_owned();
        Ok(entries.as_array().into_iter().flatten().map(text).collect())
    }

    /// Returns what axe-core finds in the page: impact, rule and element.
    pub(crate) async fn accessibility(&self) -> Result<Vec<String>> {
        self.run(&self.axe).await?;
        let script = "const { violations } = await axe.run();
            return violations.flatMap((one) => one.nodes.map((node) => `${one.impact} ${one.id} ${node.html.slice(0, 200)}`));";
        let found = self.run_async(script).await?;
        ensure!(found.is_array(), "axe-core: {found}");
        Ok(serde_json::from_value(found)?)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.driver.kill_group();
    }
}

async fn call(
    http: &Client<HttpConnector, Full<Bytes>>,
    method: Method,
    url: &str,
    body: Option<Value>,
) -> Result<Value> {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let request = Request::builder().method(method).uri(url).header("content-type", "application/json");
    let sent = http.request(request.body(Full::new(Bytes::from(body)))?);
    let response =
        tokio::time::timeout(Duration::from_secs(120), sent).await.context("the browser hangs")??;
    let status = response.status();
    let answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
    ensure!(status.is_success(), "WebDriver {url}: {}", answer["value"]["message"]);
    Ok(answer["value"].clone())
}
