//! What happens to pods: a sequence of scenarios on one node.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::differences::Source;
use super::world::{Server, Watches, World};
use crate::support::pods::PodSpec;
use crate::support::pods_clients::ClientKind;
use crate::support::wait::until;
use crate::support::{Stop, pod};

/// A readiness gate that the test sets.
const GATE: &str = "example.com/ready";

impl World {
    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.node.client())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<()> {
        self.pods().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Creates a bound pod with a readiness gate and an annotation of `bytes` bytes.
    async fn submit_gated(&self, name: &str, bytes: usize) -> Result<()> {
        let mut object = serde_json::to_value(
            pod(name).annotation("example.com/long", &"x".repeat(bytes)).bound_to(self.node.name())?,
        )?;
        object["spec"]["readinessGates"] = json!([{ "conditionType": GATE }]);
        self.pods().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// Sets a gated pod's readiness gate, from which the kubelet derives the Ready condition.
    async fn set_ready(&self, name: &str, ready: bool) -> Result<()> {
        let status = if ready { "True" } else { "False" };
        let conditions = json!({ "status": { "conditions": [{ "type": GATE, "status": status }] } });
        let patch = Patch::Strategic(conditions);
        self.pods().patch_subresource("status", name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the kubelet reports the same.
    async fn wait_until_ready(&self, name: &str, ready: bool) -> Result<()> {
        let right = if ready { "True" } else { "False" };
        until(&format!("{name} is ready: {ready}"), async || {
            let status = self.pods().get(name).await?.status.unwrap_or_default();
            let condition = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
            ensure!(condition.is_some_and(|condition| condition.status == right), "{condition:?}");
            Ok(())
        })
        .await
    }

    /// Creates pods one after another and waits until they run: binding many concurrently is up to the
    /// scheduler.
    async fn run_all(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.node.submit(&pod(name)).await?;
        }
        for name in names {
            self.node.wait_for_outcome(name).await?;
        }
        Ok(())
    }

    /// Deletes a range of the `many-` pods together.
    async fn delete_all(&self, which: std::ops::Range<usize>) -> Result<()> {
        let names: Vec<String> = which.map(|index| format!("many-{index}")).collect();
        for name in &names {
            self.node.request_deletion(name).await?;
        }
        for name in &names {
            self.node.wait_until_gone(name).await?;
        }
        Ok(())
    }

    pub(super) async fn many_pods(&mut self) -> Result<()> {
        self.wait_until_equal("there are no pods").await?;
        let names: Vec<String> = (0..20).map(|index| format!("many-{index}")).collect();
        self.run_all(&names).await?;
        let whole = pod("whole")
            .cpus(2)
            .memory("1Gi")
            .device("example.com/nic", 1)
            .annotation("example.com/text", "ü€");
        self.node
            .run(whole.init("first").cpus(1).memory("64Mi").sidecar("side").cpus(1).memory("64Mi"))
            .await?;
        self.wait_until_equal("they run").await?;
        // Python's client decodes the same pods from the same bytes.
        for server in self.servers.iter().filter(|server| server.source.serves_pods()) {
            let go = self.clients.list(ClientKind::Go, &server.socket).await?.pods()?;
            let python = self.clients.list(ClientKind::Python, &server.socket).await?.pods()?;
            let of = |pods: &[crate::support::pods_clients::Pod]| -> Vec<(String, String, String, Value)> {
                pods.iter()
                    .map(|pod| {
                        (
                            pod.uid().to_owned(),
                            pod.name(),
                            pod.hash.clone(),
                            pod.pod["status"]["phase"].clone(),
                        )
                    })
                    .collect()
            };
            ensure!(of(&go) == of(&python), "{:?}", server.source);
            ensure!(go.len() == 21, "{} pods at {:?}", go.len(), server.source);
            for pod in [&go[0], &go[20]] {
                for who in [ClientKind::Go, ClientKind::Python] {
                    let got = self.clients.get(who, &server.socket, pod.uid()).await?.pods()?;
                    ensure!(
                        got.len() == 1 && got[0].hash == pod.hash,
                        "{who:?} at {:?}: {got:?}",
                        server.source
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) async fn static_pods(&mut self) -> Result<()> {
        let manifest = self.cluster.dir().join("manifests/static.yaml");
        let name = format!("static-{}", self.node.name());
        let write = |spec: PodSpec| -> Result<()> {
            Ok(std::fs::write(&manifest, serde_json::to_vec(&spec.bound_to("")?)?)?)
        };
        write(pod("static").cpus(1).memory("64Mi"))?;
        until("the mirror is there", async || {
            ensure!(self.pods().get_opt(&name).await?.is_some());
            Ok(())
        })
        .await?;
        self.node.wait_for_outcome(&name).await?;
        self.wait_until_equal("one runs").await?;
        let before = self.pods().get(&name).await?.metadata;
        write(pod("static").cpus(1).memory("128Mi"))?;
        until("it is another", async || {
            let now = self.pods().get_opt(&name).await?.context("the API server does not have it")?.metadata;
            ensure!(now.uid != before.uid);
            Ok(())
        })
        .await?;
        self.node.wait_for_outcome(&name).await?;
        self.wait_until_equal("its file has changed").await?;
        std::fs::remove_file(&manifest)?;
        self.node.wait_until_gone(&name).await?;
        self.wait_until_equal("its file is gone").await
    }

    pub(super) async fn updates(&mut self) -> Result<()> {
        self.submit_gated("gated", 10).await?;
        self.node.wait_for_outcome("gated").await?;
        self.wait_until_equal("a pod waits").await?;
        self.set_ready("gated", true).await?;
        self.wait_until_ready("gated", true).await?;
        self.wait_until_equal("it is ready").await?;
        self.set_ready("gated", false).await?;
        self.wait_until_ready("gated", false).await?;
        self.wait_until_equal("it is not ready any more").await
    }

    pub(super) async fn labels(&mut self) -> Result<()> {
        let more =
            json!({ "metadata": { "labels": { "a": "b" }, "annotations": { "example.com/new": "c" } } });
        self.patch("gated", more).await?;
        self.wait_until_equal("it has a label and an annotation more").await
    }

    pub(super) async fn label_and_status(&mut self) -> Result<()> {
        self.set_ready("gated", true).await?;
        self.wait_until_ready("gated", true).await?;
        self.wait_until_equal("its state has changed as well").await
    }

    pub(super) async fn terminal_pods(&mut self) -> Result<()> {
        for name in ["succeeded", "failed"] {
            self.node.run(pod(name).cpus(1).memory("64Mi")).await?;
        }
        self.node.finish("succeeded", 0).await?;
        self.node.finish("failed", 1).await?;
        self.node.try_to_run(pod("rejected").cpus(9).memory("64Mi")).await?;
        self.wait_until_equal("some have ended, one was rejected").await
    }

    pub(super) async fn terminal_pods_are_deleted(&mut self) -> Result<()> {
        for name in ["succeeded", "failed", "rejected"] {
            self.node.delete(name).await?;
        }
        self.wait_until_equal("they are deleted").await
    }

    pub(super) async fn deletions(&mut self) -> Result<()> {
        self.delete_all(0..5).await?;
        self.wait_until_equal("five are deleted").await?;
        self.node.run(pod("kept").finalizer("example.com/keeps")).await?;
        self.wait_until_equal("one has a finalizer").await
    }

    pub(super) async fn a_finalizer(&mut self) -> Result<()> {
        self.node.request_deletion("kept").await?;
        self.node.wait_for_status("kept", "\"terminated\"").await?;
        self.wait_until_equal("it keeps the deleted pod").await
    }

    /// With the kubelet's `/pods` as the source, only PodInfo is served.
    pub(super) async fn the_pods_endpoint(&mut self) -> Result<()> {
        let manifest = self.cluster.dir().join("manifests/static.yaml");
        std::fs::write(&manifest, serde_json::to_vec(&pod("static").bound_to("")?)?)?;
        let name = format!("static-{}", self.node.name());
        until("the mirror is there", async || {
            ensure!(self.pods().get_opt(&name).await?.is_some());
            Ok(())
        })
        .await?;
        self.node.wait_for_outcome(&name).await?;
        let mut page = Server::start(&self.node, Source::Page).await?;
        page.subscribe(&self.clients, Watches::Conditions)?;
        self.servers.push(page);
        self.wait_until_equal("all kinds of pods are there").await?;
        let page = self.servers.pop().context("no server")?;
        for response in [
            self.clients.list(ClientKind::Go, &page.socket).await?,
            self.clients.get(ClientKind::Go, &page.socket, "nobody").await?,
        ] {
            ensure!(response.code == "Unimplemented" && response.text.contains("PodInfo"), "{response:?}");
        }
        let watcher = self.clients.watch(ClientKind::Go, &page.socket, &[])?;
        let (code, _) = watcher.wait_until_ended().await?;
        ensure!(code == "Unimplemented", "{code}");
        let unknown = self.clients.conditions(&page.socket, "get", &["--uid", "nobody"]).await?;
        ensure!(unknown.status() == ("NotFound", "pod with UID nobody not found"), "{unknown:?}");
        std::fs::remove_file(&manifest)?;
        self.node.wait_until_gone(&name).await?;
        self.wait_until_equal("the static pod is gone").await
    }

    pub(super) async fn a_finalizer_is_removed(&mut self) -> Result<()> {
        self.node.remove_finalizers("kept").await?;
        self.node.wait_until_gone("kept").await?;
        self.wait_until_equal("it is removed").await
    }

    pub(super) async fn force_deletion(&mut self) -> Result<()> {
        self.node.run(pod("forced").cpus(1).memory("64Mi")).await?;
        self.wait_until_equal("one runs").await?;
        self.node.force_delete("forced").await?;
        self.wait_until_equal("it is gone").await
    }

    pub(super) async fn a_name_is_reused(&mut self) -> Result<()> {
        self.node.run(pod("returns").cpus(1).memory("64Mi")).await?;
        let old = self.pods().get("returns").await?.metadata.uid.context("no UID")?;
        self.wait_until_equal("one runs").await?;
        self.node.force_delete("returns").await?;
        self.node.run(pod("returns").cpus(1).memory("64Mi")).await?;
        self.wait_until_equal("another one has its name").await?;
        for server in self.servers.iter().filter(|server| server.source.serves_pods()) {
            let response = self.clients.get(ClientKind::Go, &server.socket, &old).await?;
            let right = ("NotFound", format!("pod with UID {old} not found"));
            ensure!(response.status() == (right.0, &right.1), "{:?}: {response:?}", server.source);
        }
        Ok(())
    }

    /// A client that was disconnected detects deletions by the pods' absence from the list.
    pub(super) async fn deletions_while_disconnected(&mut self) -> Result<()> {
        for server in &mut self.servers {
            server.subscribers.clear();
        }
        self.delete_all(5..10).await?;
        self.node.run(pod("meanwhile")).await?;
        self.subscribe()?;
        self.wait_until_equal("all are connected again").await
    }

    /// Toggles readiness until a client that does not read is far behind.
    pub(super) async fn a_slow_watcher(&mut self) -> Result<()> {
        let names: Vec<String> = (0..25).map(|index| format!("long-{index}")).collect();
        for name in &names {
            self.submit_gated(name, 8 << 10).await?;
        }
        for name in &names {
            self.node.wait_for_outcome(name).await?;
        }
        self.wait_until_equal("they run").await?;
        let mut slow = Vec::new();
        for server in self.servers.iter().filter(|server| server.source.serves_pods()) {
            let watcher = self.clients.watch(ClientKind::Go, &server.socket, &["--stall"])?;
            watcher.wait_until_synced().await?;
            slow.push((server.source, watcher));
        }
        // The server buffers 100 events for it, and the transport some 200 KiB.
        for round in 0..8 {
            for name in &names {
                self.set_ready(name, round % 2 == 0).await?;
            }
            for name in &names {
                self.wait_until_ready(name, round % 2 == 0).await?;
            }
        }
        self.wait_until_equal("all others have received everything").await?;
        let mut cut = Vec::new();
        for (source, watcher) in &mut slow {
            watcher.resume().await?;
            let (code, text) = watcher.wait_until_ended().await?;
            if (code.as_str(), text.as_str()) != ("ResourceExhausted", "watch client channel closed") {
                let reset =
                    code == "ResourceExhausted" && text.starts_with("stream terminated by RST_STREAM");
                ensure!(reset || code == "Unavailable", "{source:?}: {code}: {text}");
                cut.push((*source, text));
            }
            let state = watcher.state();
            ensure!(state.violations.is_empty(), "{source:?}: {:#?}", state.violations);
        }
        for (source, text) in cut {
            self.note(source, "cut", &text)?;
        }
        for name in &names {
            self.node.force_delete(name).await?;
        }
        self.wait_until_equal("they are gone").await
    }

    /// Invalid requests get the same response everywhere.
    pub(super) async fn bad_requests(&mut self) -> Result<()> {
        let uid = |uid: &str| [&[10, u8::try_from(uid.len()).unwrap_or(0)], uid.as_bytes()].concat();
        let requests: Vec<(&str, &str, Vec<u8>)> = vec![
            ("nobody's UID", "/v1alpha1.Pods/GetPod", uid("nobody")),
            ("no UID", "/v1alpha1.Pods/GetPod", Vec::new()),
            ("a name", "/v1alpha1.Pods/GetPod", uid("default/many-20")),
            ("unknown fields", "/v1alpha1.Pods/ListPods", vec![0x9a, 0x06, 2, 1, 2, 0x50, 7]),
            ("no message", "/v1alpha1.Pods/GetPod", vec![0xff, 0xff, 0xff]),
            ("half a message", "/v1alpha1.Pods/GetPod", vec![10, 50, b'a']),
            ("no message for a List", "/v1alpha1.Pods/ListPods", vec![0xff, 0xff, 0xff]),
            ("no message for a Watch", "/v1alpha1.Pods/WatchPods", vec![0xff, 0xff, 0xff]),
            ("no UTF-8", "/v1alpha1.Pods/GetPod", vec![10, 2, 0xc3, 0x28]),
            ("another method", "/v1alpha1.Pods/PatchPod", Vec::new()),
            ("another version", "/v1.Pods/ListPods", Vec::new()),
            ("no method at all", "/", Vec::new()),
            (
                "5 MiB",
                "/v1alpha1.Pods/GetPod",
                [&[10, 0x80, 0x80, 0xc0, 0x02][..], &vec![b'a'; 5 << 20]].concat(),
            ),
        ];
        for (what, rpc, request) in requests {
            let kubelets = self.server(Source::Kubelet)?.socket.clone();
            let right = self.clients.call(&kubelets, rpc, &request).await?;
            let mut others = Vec::new();
            for server in
                self.servers.iter().filter(|server| server.source.serves_pods() && server.served.is_some())
            {
                let response = self.clients.call(&server.socket, rpc, &request).await?;
                ensure!(
                    response.code == right.code,
                    "{what}: {:?}: {response:?}, and the kubelet {right:?}",
                    server.source
                );
                if response.text != right.text {
                    let both = format!("{what}: {}, and the kubelet {}", response.text, right.text);
                    ensure!(
                        response.text.starts_with("grpc: ") && right.text.starts_with("grpc: "),
                        "{both}"
                    );
                    others.push((server.source, both));
                }
            }
            for (source, both) in others {
                self.note(source, "text", &both)?;
            }
        }
        Ok(())
    }

    /// numacast's server is restarted or killed: clients reconnect and have the same state.
    pub(super) async fn our_server_restarts(&mut self) -> Result<()> {
        for how in [Stop::Term, Stop::Kill] {
            for server in &mut self.servers {
                let Some(served) = &mut server.served else { continue };
                served.stop(how)?;
                for subscriber in &server.subscribers {
                    let (code, text) = subscriber.watcher.wait_until_ended().await?;
                    ensure!(code == "Unavailable", "{:?}, {how:?}: {code}: {text}", server.source);
                }
                served.restart().await?;
            }
            self.wait_until_equal(&format!("our server is back, {how:?}")).await?;
        }
        Ok(())
    }

    /// The kubelet is killed: watches of numacast's server are not interrupted.
    pub(super) async fn the_kubelet_restarts(&mut self) -> Result<()> {
        self.node.stop_kubelet(Stop::Kill)?;
        self.node.force_delete("many-10").await?;
        self.node.submit(&pod("new")).await?;
        self.our_watches_continue("the kubelet is down")?;
        self.node.start_kubelet().await?;
        self.node.wait_for_outcome("new").await?;
        self.wait_until_equal("it is back, one pod was deleted meanwhile and one is new").await
    }

    pub(super) async fn the_api_server_restarts(&mut self) -> Result<()> {
        self.cluster.kill_api_server()?;
        self.our_watches_continue("the API server is down")?;
        self.cluster.restart_api_server().await?;
        self.node.wait_until_ready().await?;
        self.wait_until_equal("it is back").await
    }

    /// Checks that no watch of numacast's server has ended.
    pub(super) fn our_watches_continue(&mut self, when: &str) -> Result<()> {
        for server in &mut self.servers {
            let Some(served) = &mut server.served else { continue };
            served.still_runs()?;
            for subscriber in &server.subscribers {
                let state = subscriber.watcher.state();
                ensure!(state.ended.is_none(), "{when}: {:?}: {:?}", server.source, state.ended);
            }
        }
        Ok(())
    }

    /// Nothing is synced: the kubelet and numacast's server have just started, and there is no API server.
    pub(super) async fn start_up(&mut self) -> Result<()> {
        for server in &mut self.servers {
            server.subscribers.clear();
            if let Some(served) = &mut server.served {
                served.stop(Stop::Kill)?;
            }
        }
        self.cluster.kill_api_server()?;
        self.node.stop_kubelet(Stop::Kill)?;
        for server in &mut self.servers {
            if let Some(served) = &mut server.served {
                served.restart().await?;
            }
        }
        self.is_not_synced("no source is up").await?;
        self.node.launch_kubelet()?;
        let socket = self.server(Source::Kubelet)?.socket.clone();
        until("the kubelet serves its Pods API", async || {
            std::os::unix::net::UnixStream::connect(&socket)?;
            Ok(())
        })
        .await?;
        self.is_not_synced("the kubelet has just started").await?;
        let list = self.clients.list(ClientKind::Go, &socket).await?;
        if list.code == "OK" {
            self.note(Source::Kubelet, "responses", &format!("{} pods", list.pods.len()))?;
        }
        self.cluster.restart_api_server().await?;
        self.node.wait_until_ready().await?;
        self.subscribe()?;
        self.wait_until_equal("the API server is back").await
    }

    /// Checks that numacast's server reports that it is not ready.
    async fn is_not_synced(&self, when: &str) -> Result<()> {
        const RIGHT: (&str, &str) = ("FailedPrecondition", "Kubelet is initializing");
        for server in
            self.servers.iter().filter(|server| server.served.is_some() && server.source.serves_pods())
        {
            let list = self.clients.list(ClientKind::Go, &server.socket).await?;
            let get = self.clients.get(ClientKind::Go, &server.socket, "nobody").await?;
            let watcher = self.clients.watch(ClientKind::Go, &server.socket, &[])?;
            let (code, text) = watcher.wait_until_ended().await?;
            for (what, status) in
                [("List", list.status()), ("Get", get.status()), ("Watch", (&*code, &*text))]
            {
                ensure!(status == RIGHT, "{when}: {:?}: {what}: {status:?}", server.source);
            }
            ensure!(watcher.state().synced == 0, "{when}: {:?}: a list has an end", server.source);
        }
        Ok(())
    }
}
