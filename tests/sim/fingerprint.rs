//! The pods that the fingerprint covers, and when it is withheld: whatever could block a node for scheduling,
//! or make the scheduler plugin use the object too early.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::nrt::Zone;
use numacast::scheduler::{Fingerprint, FingerprintMethod, FingerprintView, Informer, pod_hash};
use numacast::topology::NodeExclusions;
use numacast::util::glob::PodPattern;
use numacast_sim::api_server::{ApiServer, Fault, PODS, Rule, TOPOLOGIES};
use numacast_sim::kubelet::{Call, Fault as KubeletFault, PodSpec, Role};
use serde_json::{Value, json};

use crate::environment::{Environment, api_server, quick};
use crate::support::{Node, machine};

const GIB: u64 = 1 << 30;

async fn start(change: impl FnOnce(&mut Settings)) -> Environment {
    let env = Environment::with(Node::with(quick()), api_server(), change);
    env.converges().await;
    env
}

fn db(name: &str) -> PodSpec {
    PodSpec::guaranteed(name, 2, GIB)
}

/// Binds, admits and starts a pod.
async fn run(env: &Environment, pod: &PodSpec) {
    env.put_pod(pod, "Pending");
    env.node.kubelet.start_pod(pod.clone()).await.unwrap();
    env.put_pod(pod, "Running");
}

fn attribute(server: &ApiServer, name: &str) -> Option<String> {
    let object = server.topology("worker")?;
    object.spec.attributes.into_iter().flatten().find(|a| a.name == name).map(|a| a.value)
}

fn fingerprint(server: &ApiServer) -> String {
    attribute(server, "nodeTopologyPodsFingerprint").unwrap_or_default()
}

/// Waits until the fingerprint covers exactly these pods of the namespace `default`.
async fn covers(env: &Environment, names: &str) {
    let hashes = names.split_whitespace().map(|name| pod_hash("default", name));
    let expected = Fingerprint::of(hashes).to_string();
    let what = format!("the fingerprint covers {names:?}");
    env.wait_for(&what, || (fingerprint(&env.server) == expected).then_some(())).await;
}

/// Waits until the fingerprint is withheld.
async fn is_withheld(env: &Environment) {
    let withheld = Fingerprint::WITHHELD.to_string();
    let is_withheld = || (fingerprint(&env.server) == withheld).then_some(());
    env.wait_for("the fingerprint is withheld", is_withheld).await;
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_withheld_from_the_binding_to_the_allocation() {
    let env = start(|_| {}).await;
    covers(&env, "").await;
    env.put_pod(&db("a"), "Pending");
    is_withheld(&env).await;
    env.node.kubelet.add_pod(db("a")).unwrap();
    env.wait_for_lists(env.node.kubelet.calls().list + 2).await;
    assert_eq!(
        fingerprint(&env.server),
        Fingerprint::WITHHELD.to_string(),
        "it is listed before it is admitted"
    );
    env.node.kubelet.admit_pod("uid-a").unwrap();
    covers(&env, "").await;
    env.converges().await;
    env.put_pod(&db("a"), "Running");
    covers(&env, "a").await;
    assert_eq!(attribute(&env.server, "nodeTopologyPodsFingerprintMethod").unwrap(), "all");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_without_exclusive_resources_do_not_withhold_the_fingerprint() {
    let env = start(|_| {}).await;
    let mut changes = env.server.changes();
    env.put_pod(&PodSpec::new("best-effort"), "Pending");
    env.put_pod(&PodSpec::new("best-effort"), "Running");
    covers(&env, "best-effort").await;
    while let Ok(change) = changes.try_recv() {
        assert!(!change.object.to_string().contains(&Fingerprint::WITHHELD.to_string()), "{}", change.object);
    }
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_withheld_while_the_kubelet_does_not_respond() {
    let env = start(|_| {}).await;
    env.node.kubelet.fail_next(Call::List, 1000, &KubeletFault::Hang);
    // Triggers a scan, whose List hangs.
    std::fs::write(env.node.root().join("var/lib/kubelet/cpu_manager_state.other"), "").unwrap();
    env.put_pod(&db("a"), "Pending");
    is_withheld(&env).await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_no_longer_withholds_the_fingerprint_although_lists_fail() {
    let env = start(|_| {}).await;
    // Scans fail at once, so the agent is nearly always between two of them.
    env.node.kubelet.fail_next(
        Call::List,
        1000,
        &KubeletFault::Status(tonic::Code::Unavailable, "not now".into()),
    );
    env.put_pod(&db("a"), "Pending");
    is_withheld(&env).await;
    env.wait_for_lists(env.node.kubelet.calls().list + 2).await;
    assert!(env.server.delete(&PODS, "default", "a"));
    covers(&env, "").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn unpullable_terminated_and_rejected_pods_do_not_withhold_the_fingerprint() {
    let env = start(|_| {}).await;
    // Admitted, but its image can never be pulled.
    env.put_pod(&db("unpullable"), "Pending");
    env.node.kubelet.start_pod(db("unpullable")).await.unwrap();
    run(&env, &db("done")).await;
    env.node.kubelet.terminate_pod("default", "done");
    env.put_pod(&db("done"), "Succeeded");
    // Rejected: it never had resources in a List.
    env.put_pod(&db("rejected"), "Pending");
    is_withheld(&env).await;
    env.put_pod(&db("rejected"), "Failed");
    covers(&env, "done rejected").await;
    run(&env, &db("next")).await;
    covers(&env, "done rejected next").await;
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_before_its_admission_withholds_the_fingerprint_until_it_is_terminal() {
    let env = start(|_| {}).await;
    env.put_pod(&db("a"), "Pending");
    is_withheld(&env).await;
    // A finalizer keeps it, and the kubelet may admit it before it sees the deletion.
    let deleted = |phase: &str| {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        env.server.put(&PODS, object).unwrap();
    };
    deleted("Pending");
    env.wait_for_lists(env.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&env.server), Fingerprint::WITHHELD.to_string());
    deleted("Failed");
    covers(&env, "a").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_list_before_its_admission_does_not_account_for_a_deleted_pod() {
    let env = start(|_| {}).await;
    covers(&env, "").await;
    let free = |zones: &Value| -> u64 {
        let resources =
            zones.as_array().unwrap().iter().flat_map(|zone| zone["resources"].as_array().unwrap());
        let cpus = resources.filter(|resource| resource["name"] == "cpu");
        cpus.map(|cpu| cpu["available"].as_str().unwrap().parse::<u64>().unwrap()).sum()
    };
    let mut changes = env.server.changes();
    // Other clients use up the kubelet's shared rate limit for some seconds.
    env.node.kubelet.fail_next(Call::List, 5, &KubeletFault::rate_limited());
    run(&env, &db("a")).await;
    let mut deleted = db("a").object("worker", "Running");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-23T04:00:00Z");
    env.server.put(&PODS, deleted).unwrap();
    covers(&env, "a").await;
    let covering = Fingerprint::of([pod_hash("default", "a")]).to_string();
    while let Ok(change) = changes.try_recv() {
        if change.object.to_string().contains(&covering) {
            assert_eq!(free(&change.object["zones"]), 12, "it has two of 14 CPUs: {}", change.object);
        }
    }
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_finalizer_is_in_the_fingerprint_until_it_is_removed() {
    let env = start(|_| {}).await;
    run(&env, &db("a")).await;
    covers(&env, "a").await;
    env.node.kubelet.stop_pod("default", "a");
    for phase in ["Running", "Succeeded"] {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        env.server.put(&PODS, object).unwrap();
        env.converges().await;
        covers(&env, "a").await;
    }
    assert!(env.server.delete(&PODS, "default", "a"));
    covers(&env, "").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_the_name_of_one_deleted_by_force_is_another_pod() {
    let env = start(|_| {}).await;
    run(&env, &db("web-0")).await;
    covers(&env, "web-0").await;
    assert!(env.server.delete(&PODS, "default", "web-0"));
    covers(&env, "").await;
    // Another pod with the same name is bound before the kubelet has terminated the first.
    let again = PodSpec { uid: "again".into(), ..db("web-0") };
    env.put_pod(&again, "Pending");
    is_withheld(&env).await;
    assert!(env.node.kubelet.stop_pod("default", "web-0"));
    // Unless its removal is seen, the List's entry would be taken for the first pod's until the second one
    // runs.
    env.wait_for_lists(env.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&env.server), Fingerprint::WITHHELD.to_string());
    env.node.kubelet.start_pod(again.clone()).await.unwrap();
    covers(&env, "").await;
    env.put_pod(&again, "Running");
    covers(&env, "web-0").await;
    env.converges().await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_is_in_the_fingerprint_once_its_mirror_pod_exists() {
    let env = start(|_| {}).await;
    env.node.kubelet.start_pod(db("static-worker")).await.unwrap();
    env.converges().await;
    // The API server rejected the mirror pod, so the plugin does not know the pod.
    covers(&env, "").await;
    let mut mirror = PodSpec { uid: "mirror".into(), ..db("static-worker") }.object("worker", "Running");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["status"]["qosClass"] = json!("BestEffort");
    env.server.put(&PODS, mirror).unwrap();
    covers(&env, "static-worker").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn withholding_the_fingerprint_times_out_per_pod() {
    let env = start(|settings| settings.gate.give_up_after = Duration::from_millis(700)).await;
    env.put_pod(&db("lost"), "Pending");
    is_withheld(&env).await;
    covers(&env, "").await;
    env.wait_for_admission_timeout("default/lost").await;
    // The time limit applies to this pod alone.
    env.put_pod(&db("a"), "Pending");
    is_withheld(&env).await;
    env.node.kubelet.start_pod(db("a")).await.unwrap();
    covers(&env, "").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_last_set_of_pods_is_used_while_the_watch_is_broken() {
    let env = start(|_| {}).await;
    run(&env, &db("a")).await;
    covers(&env, "a").await;
    env.server.set_denied("list", PODS.plural, true);
    env.server.set_denied("watch", PODS.plural, true);
    env.server.cut_connections();
    env.server.compact_history();
    env.put_pod(&PodSpec::new("unseen"), "Running");
    env.node.kubelet.start_pod(db("b")).await.unwrap();
    env.converges().await;
    covers(&env, "a").await;
    env.server.set_denied("list", PODS.plural, false);
    env.server.set_denied("watch", PODS.plural, false);
    covers(&env, "a unseen").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn excluded_pods_are_in_the_fingerprint() {
    let env = Environment::with(Node::with(quick()), api_server(), |settings| {
        let pattern = PodPattern { namespace: "default".parse().unwrap(), name: "a".parse().unwrap() };
        settings.rules.exclude = NodeExclusions {
            pods: vec![pattern],
            outside_namespace: Some("default".into()),
            ..NodeExclusions::default()
        };
    });
    run(&env, &db("a")).await;
    covers(&env, "a").await;
    // The fingerprint is withheld for an excluded pod as for any other.
    let excluded = PodSpec { uid: "again".into(), ..db("a") };
    assert!(env.node.kubelet.stop_pod("default", "a"));
    assert!(env.server.delete(&PODS, "default", "a"));
    covers(&env, "").await;
    env.put_pod(&excluded, "Pending");
    is_withheld(&env).await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_does_not_publish_a_fingerprint_too_early() {
    let env = start(|_| {}).await;
    run(&env, &db("a")).await;
    env.put_pod(&db("waits"), "Pending");
    is_withheld(&env).await;
    let env = env.stop_agent().await;
    let mut changes = env.server.changes();
    let env = env.restart_agent(|_| {});
    env.wait_for_lists(env.node.kubelet.calls().list + 3).await;
    is_withheld(&env).await;
    let mut published = 0;
    while let Ok(change) = changes.try_recv() {
        let is_withheld = change.object.to_string().contains(&Fingerprint::WITHHELD.to_string());
        published += usize::from(change.kind == &TOPOLOGIES && !is_withheld);
    }
    assert_eq!(published, 0, "one pod is not accounted for");
    env.node.kubelet.start_pod(db("waits")).await.unwrap();
    covers(&env, "a").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_withheld_when_the_agent_stops() {
    let env = start(|_| {}).await;
    run(&env, &db("a")).await;
    covers(&env, "a").await;
    let before = env.server.topology("worker").unwrap();
    let env = env.stop_agent().await;
    assert_eq!(fingerprint(&env.server), Fingerprint::WITHHELD.to_string());
    let after = env.server.topology("worker").unwrap();
    assert_eq!(before.spec.zones, after.spec.zones);
    let env = env.restart_agent(|_| {});
    covers(&env, "a").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_of_a_killed_agent_is_withheld_if_the_node_cannot_be_read() {
    let first = start(|_| {}).await;
    run(&first, &db("a")).await;
    covers(&first, "a").await;
    let before = first.server.topology("worker").unwrap();
    let first = first.kill_agent().await;
    assert_eq!(first.server.topology("worker").unwrap().spec, before.spec);
    first.node.kubelet.fail_next(Call::List, 1000, &KubeletFault::Hang);
    let second = first.restart_agent(|settings| settings.kubelet_timeout = Duration::from_millis(200));
    second.put_pod(&db("b"), "Pending");
    is_withheld(&second).await;
    let after = second.server.topology("worker").unwrap();
    assert_eq!(
        (after.spec.zones, after.metadata.owner_references),
        (before.spec.zones, before.metadata.owner_references)
    );
    second.node.kubelet.clear_faults();
    second.node.kubelet.start_pod(db("b")).await.unwrap();
    covers(&second, "a").await;
    second.converges().await;
    second.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_withheld_while_the_pods_are_unknown() {
    let server = api_server();
    server.set_denied("list", PODS.plural, true);
    let env = Environment::with(Node::with(quick()), server, |_| {});
    env.converges().await;
    is_withheld(&env).await;
    env.server.set_denied("list", PODS.plural, false);
    covers(&env, "").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_write_waits_for_the_pods() {
    let server = api_server();
    server.put(&PODS, db("a").object("worker", "Running")).unwrap();
    server.inject(Rule {
        verb: Some("list"),
        resource: Some("pods"),
        times: Some(1),
        fault: Fault::Delay(Duration::from_millis(300)),
    });
    let node = Node::with(quick());
    node.kubelet.start_pod(db("a")).await.unwrap();
    let env = Environment::with(node, server, |_| {});
    env.converges().await;
    covers(&env, "a").await;
    assert_eq!(env.server.writes().changes, 1, "no write lacks them");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn informer_view_and_method_select_the_pods() {
    let pods = |env: &Environment| {
        env.put_pod(&db("a"), "Running");
        env.put_pod(&db("ended"), "Succeeded");
        env.put_pod(&PodSpec::new("best-effort"), "Running");
    };
    use FingerprintMethod::{All, WithExclusiveResources};
    for (selection, names) in [
        ((FingerprintView::Scheduler, All, Informer::Dedicated), Some("a best-effort ended")),
        ((FingerprintView::Scheduler, All, Informer::Shared), Some("a best-effort")),
        ((FingerprintView::Scheduler, WithExclusiveResources, Informer::Dedicated), Some("a ended")),
        ((FingerprintView::Kubelet, All, Informer::Dedicated), Some("a listed")),
        ((FingerprintView::Kubelet, WithExclusiveResources, Informer::Dedicated), Some("a")),
        ((FingerprintView::None, All, Informer::Dedicated), None),
    ] {
        let env = start(|settings| {
            (settings.gate.view, settings.gate.method, settings.gate.informer) = selection;
        })
        .await;
        pods(&env);
        env.node.kubelet.start_pod(db("a")).await.unwrap();
        env.node.kubelet.start_pod(PodSpec::new("listed")).await.unwrap();
        env.converges().await;
        match names {
            Some(names) => covers(&env, names).await,
            None => assert_eq!(fingerprint(&env.server), ""),
        }
        env.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_waited_for_and_init_containers_are_not() {
    let env = start(|_| {}).await;
    let mut pod = db("a");
    pod.containers[0].milli_cpu = 1500;
    let mut sidecar = pod.containers[0].clone();
    (sidecar.name, sidecar.role, sidecar.milli_cpu) = ("beside".into(), Role::Sidecar, 1000);
    let mut init = sidecar.clone();
    (init.name, init.role, init.milli_cpu) = ("first".into(), Role::Init, 3000);
    pod.containers.splice(0..0, [init, sidecar]);
    env.put_pod(&pod, "Pending");
    is_withheld(&env).await;
    run(&env, &pod).await;
    covers(&env, "a").await;
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_status_file_lists_the_pods() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("status.json");
    let to = file.clone();
    let env = start(|settings| settings.status_file = Some(to)).await;
    run(&env, &db("a")).await;
    covers(&env, "a").await;
    let read = || -> Option<Value> { serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok() };
    // The file is written after the object.
    let named = || {
        let status = read()?;
        let same = status["fingerprintComputed"] == json!(fingerprint(&env.server));
        (same && status["pods"] == json!([{"Namespace": "default", "Name": "a"}])).then_some(())
    };
    env.wait_for("the file lists the pod", named).await;
    assert_eq!(read().unwrap()["nodeName"], "worker");
    env.put_pod(&db("b"), "Pending");
    is_withheld(&env).await;
    let withheld_for =
        || (read()?["withheldFor"] == json!([{"Namespace": "default", "Name": "b"}])).then_some(());
    env.wait_for("the file lists the other pod", withheld_for).await;
    assert_eq!(read().unwrap()["withheldReason"], "UnaccountedPods");
    env.stop().await;
}

#[tokio::test(start_paused = true)]
async fn placements_are_published_with_the_fingerprint_only() {
    const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
    let mut spec = machine("two-by-eight");
    spec.kubelet.insert("topologyManagerPolicy".to_owned(), json!("single-numa-node"));
    let env = Environment::with(Node::with_machine(&spec, quick()), api_server(), |_| {});
    run(&env, &db("a").on([0])).await;
    run(&env, &db("b").on([1])).await;
    covers(&env, "a b").await;
    let expected = "npv0v001::ve=leb89::cc=2::nn=2::bn=0";
    let published = || (attribute(&env.server, METADATA)? == expected).then_some(());
    env.wait_for("the placements are published", published).await;
    let object = env.server.topology("worker").unwrap();
    let has_vector = |zone: &Zone| {
        let mut attributes = zone.attributes.iter().flatten();
        attributes.any(|attribute| attribute.name == "topology.node.k8s.io/numaplacement-vector")
    };
    let vectors: Vec<_> = object.spec.zones.iter().map(has_vector).collect();
    assert_eq!(vectors, [false, true]);
    env.put_pod(&db("c"), "Pending");
    is_withheld(&env).await;
    let removed = || attribute(&env.server, METADATA).is_none().then_some(());
    env.wait_for("the placements are removed", removed).await;
    env.stop().await;
}
