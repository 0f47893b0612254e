//! The API server and its etcd are down, for a few seconds or for `NUMACAST_OUTAGE` seconds: numacast's
//! server stays up, serves what its sources can know, and is correct afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::differences::Source;
use super::world::{Server, Watches, World};
use crate::support::pod;
use crate::support::pods_clients::{ClientKind, Pod};
use crate::support::wait::{pause, until};

/// Default duration in seconds.
const SHORT: u64 = 5;

/// Statistics of the requests to one server during the outage.
#[derive(Debug, Default)]
struct Requests {
    lists: usize,
    gets: usize,
    watches: usize,
    slowest: Duration,
}

impl World {
    fn manifest(&self, name: &str) -> std::path::PathBuf {
        self.cluster.dir().join(format!("manifests/{name}.json"))
    }

    fn write_static(&self, name: &str) -> Result<()> {
        Ok(std::fs::write(self.manifest(name), serde_json::to_vec(&pod(name).bound_to("")?)?)?)
    }

    pub(super) async fn the_api_server_is_down(&mut self) -> Result<()> {
        let seconds = std::env::var("NUMACAST_OUTAGE").ok().map_or(Ok(SHORT), |seconds| seconds.parse())?;
        let static_name = |name: &str| format!("{name}-{}", self.node.name());
        let (early, late) = (static_name("static-early"), static_name("static-late"));
        for index in 0..20 {
            self.node.submit(&pod(&format!("stays-{index}"))).await?;
        }
        for index in 0..20 {
            self.node.wait_for_outcome(&format!("stays-{index}")).await?;
        }
        self.write_static("static-early")?;
        until("the mirror is there", async || {
            ensure!(self.truth().await?.iter().any(|pod| pod["metadata"]["name"] == *early));
            Ok(())
        })
        .await?;
        self.node.wait_for_outcome(&early).await?;
        self.node.run(pod("ends")).await?;
        let mut page = Server::start(&self.node, Source::Page).await?;
        page.subscribe(&self.clients, Watches::Conditions)?;
        self.servers.push(page);
        self.wait_until_equal("before").await?;
        let before = self.listed(Source::ApiServer).await?;
        let infos =
            self.clients.conditions(&self.server(Source::ApiServer)?.socket, "list", &[]).await?.pods()?;

        self.cluster.signal_etcd("STOP")?;
        self.cluster.kill_api_server()?;
        let begun = Instant::now();
        self.write_static("static-late")?;
        std::fs::remove_file(self.manifest("static-early"))?;
        self.node.exit("ends", 0)?;
        // Sources that read from the kubelet are up to date.
        for source in [Source::Kubelet, Source::PodsApi] {
            until(&format!("{source:?} serves what the kubelet knows"), async || {
                let listed = self.listed(source).await?;
                let phase = |name: &str| {
                    let found = listed.iter().find(|pod| pod.pod["metadata"]["name"] == *name);
                    found.map(|pod| pod.pod["status"]["phase"].as_str().unwrap_or_default().to_owned())
                };
                let found = [phase(&early), phase(&late), phase("ends")];
                let right = [None, Some("Running".to_owned()), Some("Succeeded".to_owned())];
                ensure!(found == right, "{found:?}");
                Ok(())
            })
            .await?;
        }
        until("PodInfo does so, too, and subscribers have received it", async || {
            let server = self.server(Source::PodsApi)?;
            let infos = self.clients.conditions(&server.socket, "list", &[]).await?.pods()?;
            let found = infos.iter().find(|info| info.pod["metadata"]["name"] == *late);
            let found = &found.context("it is not there")?.pod["info"];
            ensure!(found["static"] == true && found["phase"] == "Running", "{found}");
            let listed = self.listed(Source::PodsApi).await?;
            for subscriber in &server.subscribers {
                let pods = subscriber.watcher.state().pods.len();
                ensure!(pods == listed.len(), "{:?}: {pods} pods", subscriber.watches);
            }
            Ok(())
        })
        .await?;
        // The API server source is down, as the metric shows, and its last state is still served.
        let api_server = self.server(Source::ApiServer)?;
        let up = [r#"component="pods_api""#, r#"source="api_server""#];
        until("the metric shows that the API server is down", async || {
            let up = api_server.served.as_ref().context("ours")?.sum("numacast_pod_source_up", &up).await?;
            ensure!(up == Some(0.0), "{up:?}");
            Ok(())
        })
        .await?;
        let mut requests = [Requests::default(), Requests::default()];
        let outage = Duration::from_secs(seconds);
        loop {
            for (source, requests) in [Source::PodsApi, Source::ApiServer].into_iter().zip(&mut requests) {
                self.requests_succeed(source, requests).await?;
            }
            ensure!(
                self.listed(Source::ApiServer).await? == before,
                "the last state of the API server has changed"
            );
            self.our_watches_continue("the API server is down")?;
            if begun.elapsed() > outage {
                break;
            }
            pause("during the outage", Duration::from_secs(1)).await;
        }
        let now =
            self.clients.conditions(&self.server(Source::ApiServer)?.socket, "list", &[]).await?.pods()?;
        let log = self.server(Source::ApiServer)?.served.as_ref().context("ours")?.log_tail();
        let page = self.server(Source::Page)?;
        let of_page = [r#"component="pods_api""#];
        let page_up = page.served.as_ref().context("ours")?.sum("numacast_pod_source_up", &of_page).await?;
        eprintln!("down for {:?}: {requests:?}; conditions have changed: {}", begun.elapsed(), now != infos);
        eprintln!("{log}\n/pods is up: {page_up:?}\n{}", page.served.as_ref().context("ours")?.log_tail());

        // `/pods` is polled rarely, and another scenario checks it.
        self.servers.pop();
        self.cluster.signal_etcd("CONT")?;
        self.cluster.restart_api_server().await?;
        self.node.wait_until_ready().await?;
        self.wait_until_equal("it is back").await?;
        self.node.delete("ends").await?;
        std::fs::remove_file(self.manifest("static-late"))?;
        self.node.wait_until_gone(&late).await?;
        self.wait_until_equal("all is as before").await
    }

    async fn listed(&self, source: Source) -> Result<Vec<Pod>> {
        self.clients.list(ClientKind::Go, &self.server(source)?.socket).await?.pods()
    }

    /// Checks that List, Get of every tenth pod and a new watch return the same.
    async fn requests_succeed(&self, source: Source, requests: &mut Requests) -> Result<()> {
        let socket = &self.server(source)?.socket;
        let begun = Instant::now();
        let listed = self.listed(source).await?;
        requests.slowest = requests.slowest.max(begun.elapsed());
        requests.lists += 1;
        for pod in listed.iter().step_by(10) {
            let got = self.clients.get(ClientKind::Go, socket, pod.uid()).await?.pods()?;
            ensure!(got.len() == 1 && got[0].name() == pod.name(), "{source:?}: {got:?}");
            requests.gets += 1;
        }
        let watcher = self.clients.watch(ClientKind::Go, socket, &[])?;
        watcher.wait_until_synced().await?;
        let state = watcher.state();
        ensure!(state.pods.keys().eq(listed.iter().map(Pod::uid)), "{source:?}: {:?}", state.pods.keys());
        ensure!(state.violations.is_empty(), "{source:?}: {:#?}", state.violations);
        requests.watches += 1;
        Ok(())
    }
}
