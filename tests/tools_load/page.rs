//! The page of `numacast ui`, in a real browser, while one object after another changes.

use std::pin::pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use kube::Api;
use kube::api::{DynamicObject, PostParams, WatchEvent, WatchParams};
use numacast::nrt::Version;
use serde_json::{Value, json};

use crate::Options;
use crate::support::agent::Agent;
use crate::support::browser::Browser;
use crate::support::ui::Ui;
use crate::support::wait::until;
use crate::support::{Cluster, RealNode, pod, usage};

/// Objects that are changed, one after another.
const CHANGES: usize = 40;
/// Pods that a real kubelet starts, one after another.
const PODS: usize = 10;
/// Time between the changes: the view of a change that was late must not show the next.
const PAUSE: Duration = Duration::from_millis(400);

/// Records when all nodes are drawn: before the page's own scripts run.
const WATCH_START: &str = "
    new MutationObserver((_, observer) => {
      if (document.documentElement?.dataset.complete !== 'true') return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => { window.allTilesAt = Date.now(); }));
    }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-complete'] });";

/// Counts frames for three seconds, while `act(frame)` runs in each.
const FRAMES: &str = "
    const measure = (act) => new Promise((done) => {
      const times = [];
      const frame = (now) => {
        times.push(now);
        if (now - times[0] > 3000) {
          const gaps = times.slice(1).map((time, at) => time - times[at]).sort((a, b) => a - b);
          return done({ perSecond: 1000 * gaps.length / (now - times[0]), longest: gaps.at(-1) });
        }
        act(times.length);
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    });";

/// Scrolls the map up and down.
const SCROLL: &str = "
    const map = document.querySelector('#map');
    const most = map.scrollHeight - map.clientHeight;
    return measure((frame) => { map.scrollTop = Math.abs((frame * 60) % (2 * most) - most); });";

/// Types into the search, one character every six frames.
const FILTER: &str = "
    const query = document.querySelector('#query');
    const text = 'node-0123 zone-1 node-04';
    return measure((frame) => {
      if (frame % 6 !== 0) return;
      query.value = text.slice(0, (frame / 6) % text.length);
      query.dispatchEvent(new Event('input'));
    });";

/// Waits for the next version, and returns when it is drawn.
const NEXT: &str = "
    const before = document.documentElement.dataset.version;
    window.drawn = new Promise((done) => {
      const frame = () => {
        if (document.documentElement.dataset.version === before) return requestAnimationFrame(frame);
        requestAnimationFrame(() => requestAnimationFrame(() => done(Date.now())));
      };
      requestAnimationFrame(frame);
    });";

/// A figure of the page.
pub(crate) struct Figure {
    what: &'static str,
    values: Vec<f64>,
    unit: &'static str,
    /// The target, and whether it is the least.
    target: Option<(f64, bool)>,
}

impl Figure {
    fn new(what: &'static str, unit: &'static str, values: Vec<f64>) -> Self {
        Self { what, values, unit, target: None }
    }

    fn at_most(self, most: f64) -> Self {
        Self { target: Some((most, false)), ..self }
    }

    fn at_least(self, least: f64) -> Self {
        Self { target: Some((least, true)), ..self }
    }

    /// Returns the median and the worst value.
    fn summary(&self) -> (f64, f64) {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        if self.target.is_some_and(|(_, is_least)| is_least) {
            values.reverse();
        }
        (values[values.len() / 2], values[values.len() - 1])
    }

    /// Returns the row of the table.
    pub(crate) fn row(&self) -> String {
        let (median, worst) = self.summary();
        let target = match self.target {
            None => "-".to_owned(),
            Some((least, true)) => format!("at least {least}"),
            Some((most, false)) => format!("at most {most}"),
        };
        format!("| {}, {} | {median:.0} | {worst:.0} | {target} |", self.what, self.unit)
    }

    /// Returns a sentence if the median misses the target.
    pub(crate) fn missed(&self) -> Option<String> {
        let (median, _) = self.summary();
        let (target, is_least) = self.target?;
        let is_missed = if is_least { median < target } else { median > target };
        is_missed.then(|| format!("{}: {median:.0} {}, and the target is {target}", self.what, self.unit))
    }
}

/// Measures the page. The browser and everything else share the cores.
pub(crate) async fn measure(cluster: &Cluster, options: &Options) -> Result<Vec<Figure>> {
    let Some(browser) = Browser::start(cluster.dir()).await? else { bail!("there is no browser") };
    browser.look(1400, 900, false).await?;
    browser.before_scripts(WATCH_START).await?;
    let (mut paint, mut tiles) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..options.runs {
        // Each time the server has to read the cluster.
        let started = now()?;
        let ui = last.insert(Ui::of(&options.binary, &cluster.admin_kubeconfig(), &["--group-by", "pool"])?);
        browser.open(&ui.url).await?;
        browser.wait_for("window.allTilesAt").await?;
        let summary = browser.text("#summary").await?;
        ensure!(summary.contains("nodes") && !summary.contains("no object"), "{summary}");
        tiles.push(number(&browser.run("return window.allTilesAt").await?)? - started);
        let first = "return performance.getEntriesByName('first-contentful-paint')[0].startTime";
        paint.push(number(&browser.run(first).await?)?);
    }
    let (mut scroll, mut filter) = (Vec::new(), Vec::new());
    for _ in 0..options.runs {
        scroll.push(number(&browser.run_async(&format!("{FRAMES}{SCROLL}")).await?["perSecond"])?);
        filter.push(number(&browser.run_async(&format!("{FRAMES}{FILTER}")).await?["perSecond"])?);
    }
    let fits = find_room(&browser, options).await?;
    let changes = change_objects(cluster, &browser, options).await?;
    let pods = start_pods(cluster, &browser).await?;
    let ui = last.context("nothing was run")?;
    let server = usage::memory(ui.id(), "VmHWM")? as f64 / 1_048_576.0;
    let page = number(&browser.run("return performance.memory.usedJSHeapSize").await?)? / 1_048_576.0;
    Ok(vec![
        Figure::new("first paint", "ms", paint).at_most(1000.0),
        Figure::new("from the start of `numacast ui` until all tiles are drawn", "ms", tiles).at_most(3000.0),
        Figure::new("while scrolling", "frames per second", scroll).at_least(55.0),
        Figure::new("while typing a search", "frames per second", filter).at_least(55.0),
        Figure::new("until it is known where a pod fits", "ms", fits),
        Figure::new("from an accepted write of an object until it is drawn", "ms", changes).at_most(300.0),
        Figure::new("from the event of a real node's object, as a pod starts, until it is drawn", "ms", pods)
            .at_most(300.0),
        Figure::new("peak memory of the server", "MiB", vec![server]),
        Figure::new("heap of the page's scripts", "MiB", vec![page]),
    ])
}

/// Types into the search.
fn search(text: &str) -> String {
    format!(
        "const query = document.querySelector('#query');
        query.value = {text:?};
        query.dispatchEvent(new Event('input'));"
    )
}

/// Searches for room for pods, and returns the milliseconds until each answer. The first has all Nodes and pods read.
async fn find_room(browser: &Browser, options: &Options) -> Result<Vec<f64>> {
    let found = "document.querySelector('#found').innerText";
    let mut took = Vec::new();
    for cpus in 1..=options.runs {
        let start = Instant::now();
        browser.run(&search(&format!("{cpus} cpu 1Gi"))).await?;
        browser.wait_for(&format!("{found}.startsWith('cpu={cpus}, memory=1Gi: fits')")).await?;
        took.push(start.elapsed().as_secs_f64() * 1000.0);
    }
    browser.run(&search("")).await?;
    Ok(took)
}

/// Changes one object after another, and returns the milliseconds until each change is drawn.
async fn change_objects(cluster: &Cluster, browser: &Browser, options: &Options) -> Result<Vec<f64>> {
    let objects: Api<DynamicObject> = Api::all_with(cluster.client(), &Version::V1alpha2.resource());
    let mut took = Vec::new();
    for change in 0..CHANGES {
        let name = format!("node-{:05}", change * options.nodes / CHANGES);
        let mut object = objects.get(&name).await?;
        let available = &mut object.data["zones"][0]["resources"][0]["available"];
        *available = json!(if *available == "0" { "1" } else { "0" });
        browser.run(NEXT).await?;
        objects.replace(&name, &PostParams::default(), &object).await?;
        let written = now()?;
        took.push((number(&browser.run_async("return window.drawn;").await?)? - written).max(0.0));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(took)
}

/// Starts pods on a real kubelet, and returns the milliseconds from each event of the node's object, as another watch gets
/// it, until it is drawn.
async fn start_pods(cluster: &Cluster, browser: &Browser) -> Result<Vec<f64>> {
    let node = RealNode::on("two-by-eight")?.start(cluster).await?;
    let mut agent = Agent::start(&node, &[])?;
    let name = node.name();
    let objects: Api<DynamicObject> = Api::all_with(cluster.client(), &Version::V1alpha2.resource());
    let found = until("the node has an object", async || {
        agent.still_runs()?;
        objects.get(name).await?.metadata.resource_version.context("the object has no version")
    })
    .await?;
    let watch = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut events = pin!(objects.watch(&watch, &found).await?);
    let mut took = Vec::new();
    for number_of_pod in 0..PODS {
        browser.run(NEXT).await?;
        let starts = node.run(pod(&format!("p{number_of_pod}")).cpus(1).memory("64Mi"));
        let seen = async {
            loop {
                let event = events.next().await.context("the watch ended")??;
                if let WatchEvent::Modified(_) = event {
                    return now();
                }
            }
        };
        let (started, seen) = tokio::join!(starts, seen);
        started?;
        took.push((number(&browser.run_async("return window.drawn;").await?)? - seen?).max(0.0));
        tokio::time::sleep(PAUSE).await;
        agent.still_runs()?;
    }
    Ok(took)
}

/// Milliseconds since 1970, as the browser counts them.
#[allow(clippy::disallowed_methods)] // compared with the browser's clock
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1000.0)
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().with_context(|| format!("the page returns {value}"))
}
