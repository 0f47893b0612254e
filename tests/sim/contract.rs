//! The pods that the object accounts for, and when its fingerprint is withheld: everything that could block a
//! node for scheduling, or make the scheduler plugin trust the object too early.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::scheduler::{Fingerprint, FingerprintMethod, FingerprintView, Informer, pod_hash};
use numacast::sim::api_server::{ApiServer, EVENTS, Fault, PODS, TOPOLOGIES};
use numacast::sim::kubelet::{Call, Fault as Limit, PodSpec, Role};
use numacast::topology::Exclude;
use numacast::util::glob::PodPattern;
use serde_json::{Value, json};

use crate::agent::{World, quick, server};
use crate::support::{SimNode, machine};

const GIB: u64 = 1 << 30;

async fn world(change: impl FnOnce(&mut Settings)) -> World {
    let world = World::with(SimNode::with(quick()), server().await, change);
    world.agrees().await;
    world
}

fn db(name: &str) -> PodSpec {
    PodSpec::guaranteed(name, 2, GIB)
}

/// Writes a pod with this phase to the API server.
fn show(world: &World, pod: &PodSpec, phase: &str) {
    world.server.put(&PODS, pod.object("worker", phase)).unwrap();
}

/// Binds, admits and starts a pod.
async fn run(world: &World, pod: &PodSpec) {
    show(world, pod, "Pending");
    world.node.kubelet.start_pod(pod.clone()).await.unwrap();
    show(world, pod, "Running");
}

fn attribute(server: &ApiServer, name: &str) -> Option<String> {
    let object = server.topology("worker")?;
    object.spec.attributes.into_iter().flatten().find(|a| a.name == name).map(|a| a.value)
}

fn fingerprint(server: &ApiServer) -> String {
    attribute(server, "nodeTopologyPodsFingerprint").unwrap_or_default()
}

/// Waits until the object accounts for exactly these pods of the namespace `default`.
async fn says(world: &World, names: &str) {
    let hashes = names.split_whitespace().map(|name| pod_hash("default", name));
    let expected = Fingerprint::of(hashes).to_string();
    world.until(|| (fingerprint(&world.server) == expected).then_some(())).await;
}

async fn is_held(world: &World) {
    let held = Fingerprint::WITHHELD.to_string();
    world.until(|| (fingerprint(&world.server) == held).then_some(())).await;
}

#[tokio::test]
async fn a_pod_that_is_bound_holds_the_object_until_its_cpus_are_taken() {
    let world = world(|_| {}).await;
    says(&world, "").await;
    show(&world, &db("a"), "Pending");
    is_held(&world).await;
    world.node.kubelet.add_pod(db("a")).unwrap();
    world.lists_reach(world.node.kubelet.calls().list + 2).await;
    assert_eq!(
        fingerprint(&world.server),
        Fingerprint::WITHHELD.to_string(),
        "it is named before it is admitted"
    );
    world.node.kubelet.admit_pod("uid-a").unwrap();
    says(&world, "").await;
    world.agrees().await;
    show(&world, &db("a"), "Running");
    says(&world, "a").await;
    assert_eq!(attribute(&world.server, "nodeTopologyPodsFingerprintMethod").unwrap(), "all");
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_asks_for_nothing_of_its_own_never_holds() {
    let world = world(|_| {}).await;
    let mut changes = world.server.changes();
    show(&world, &PodSpec::new("modest"), "Pending");
    show(&world, &PodSpec::new("modest"), "Running");
    says(&world, "modest").await;
    while let Ok(change) = changes.try_recv() {
        assert!(!change.object.to_string().contains(&Fingerprint::WITHHELD.to_string()), "{}", change.object);
    }
    world.stop().await;
}

#[tokio::test]
async fn the_object_is_held_although_the_kubelet_does_not_answer() {
    let world = world(|_| {}).await;
    world.node.kubelet.fail_next(Call::List, 1000, &Limit::Hang);
    // Triggers a scan whose List hangs.
    std::fs::write(world.node.root().join("var/lib/kubelet/cpu_manager_state.other"), "").unwrap();
    show(&world, &db("a"), "Pending");
    is_held(&world).await;
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_the_kubelet_does_not_answer_holds_nothing() {
    let world = world(|_| {}).await;
    // Scans fail at once, so the agent is nearly always between two of them.
    world.node.kubelet.fail_next(
        Call::List,
        1000,
        &Limit::Status(tonic::Code::Unavailable, "not now".into()),
    );
    show(&world, &db("a"), "Pending");
    is_held(&world).await;
    world.lists_reach(world.node.kubelet.calls().list + 2).await;
    assert!(world.server.delete(&PODS, "default", "a"));
    says(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn pods_that_cannot_start_or_have_ended_freeze_nothing() {
    let world = world(|_| {}).await;
    // Admitted, but its image can never be pulled.
    show(&world, &db("unpullable"), "Pending");
    world.node.kubelet.start_pod(db("unpullable")).await.unwrap();
    run(&world, &db("done")).await;
    world.node.kubelet.terminate_pod("default", "done");
    show(&world, &db("done"), "Succeeded");
    // Rejected: it never had resources in a List.
    show(&world, &db("refused"), "Pending");
    is_held(&world).await;
    show(&world, &db("refused"), "Failed");
    says(&world, "done refused").await;
    run(&world, &db("next")).await;
    says(&world, "done refused next").await;
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_is_deleted_before_it_was_admitted_holds_until_the_kubelet_is_done_with_it() {
    let world = world(|_| {}).await;
    show(&world, &db("a"), "Pending");
    is_held(&world).await;
    // A finalizer keeps it, and the kubelet may admit it before it sees the deletion.
    let deleted = |phase: &str| {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        world.server.put(&PODS, object).unwrap();
    };
    deleted("Pending");
    world.lists_reach(world.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    deleted("Failed");
    says(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn a_list_from_before_its_admission_does_not_account_for_a_deleted_pod() {
    let world = world(|_| {}).await;
    says(&world, "").await;
    let free = |zones: &Value| -> u64 {
        let resources =
            zones.as_array().unwrap().iter().flat_map(|zone| zone["resources"].as_array().unwrap());
        let cpus = resources.filter(|resource| resource["name"] == "cpu");
        cpus.map(|cpu| cpu["available"].as_str().unwrap().parse::<u64>().unwrap()).sum()
    };
    let mut changes = world.server.changes();
    // Other clients use up the kubelet's shared rate limit for some seconds.
    let limited = Limit::Status(tonic::Code::ResourceExhausted, "rejected by rate limit".into());
    world.node.kubelet.fail_next(Call::List, 5, &limited);
    run(&world, &db("a")).await;
    let mut deleted = db("a").object("worker", "Running");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-23T04:00:00Z");
    world.server.put(&PODS, deleted).unwrap();
    says(&world, "a").await;
    let agrees = Fingerprint::of([pod_hash("default", "a")]).to_string();
    while let Ok(change) = changes.try_recv() {
        if change.object.to_string().contains(&agrees) {
            assert_eq!(free(&change.object["zones"]), 12, "it has two of the 14: {}", change.object);
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_a_finalizer_keeps_counts_while_its_phase_does() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    says(&world, "a").await;
    world.node.kubelet.stop_pod("default", "a");
    for phase in ["Running", "Succeeded"] {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        world.server.put(&PODS, object).unwrap();
        world.agrees().await;
        says(&world, "a").await;
    }
    assert!(world.server.delete(&PODS, "default", "a"));
    says(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn a_pod_that_was_deleted_by_force_is_gone_and_so_is_its_name() {
    let world = world(|_| {}).await;
    run(&world, &db("web-0")).await;
    says(&world, "web-0").await;
    assert!(world.server.delete(&PODS, "default", "web-0"));
    says(&world, "").await;
    // Another pod with the same name arrives before the kubelet has torn down the first.
    let again = PodSpec { uid: "again".into(), ..db("web-0") };
    show(&world, &again, "Pending");
    is_held(&world).await;
    assert!(world.node.kubelet.stop_pod("default", "web-0"));
    // Unless its removal is seen, the List's entry would be taken for the first pod's until the second one
    // runs.
    world.lists_reach(world.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    world.node.kubelet.start_pod(again.clone()).await.unwrap();
    says(&world, "").await;
    show(&world, &again, "Running");
    says(&world, "web-0").await;
    world.agrees().await;
    world.stop().await;
}

#[tokio::test]
async fn a_static_pod_counts_when_its_copy_does() {
    let world = world(|_| {}).await;
    world.node.kubelet.start_pod(db("static-worker")).await.unwrap();
    world.agrees().await;
    // The API server rejected the mirror pod, so the plugin does not know the pod.
    says(&world, "").await;
    let mut copy = PodSpec { uid: "of-the-copy".into(), ..db("static-worker") }.object("worker", "Running");
    copy["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    copy["status"]["qosClass"] = json!("BestEffort");
    world.server.put(&PODS, copy).unwrap();
    says(&world, "static-worker").await;
    world.stop().await;
}

#[tokio::test]
async fn one_pod_does_not_hold_the_object_for_ever() {
    let world = world(|settings| settings.gate.give_up_after = Duration::from_millis(700)).await;
    show(&world, &db("lost"), "Pending");
    is_held(&world).await;
    says(&world, "").await;
    let told = || {
        let events = world.server.list(&EVENTS, "default");
        let about = |event: &Value| {
            event["reason"] == "PodAdmissionTimeout" && event["note"].as_str().unwrap().contains("default/lost")
        };
        events.iter().any(|event| about(event)).then_some(())
    };
    world.until(told).await;
    // The time limit applies to this pod alone.
    show(&world, &db("a"), "Pending");
    is_held(&world).await;
    world.node.kubelet.start_pod(db("a")).await.unwrap();
    says(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn when_the_watch_is_lost_the_last_set_stays_and_when_it_is_back_it_is_right() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    says(&world, "a").await;
    world.server.set_denied("list", PODS.plural, true);
    world.server.set_denied("watch", PODS.plural, true);
    world.server.cut_connections();
    world.server.compact_history();
    show(&world, &PodSpec::new("unseen"), "Running");
    world.node.kubelet.start_pod(db("b")).await.unwrap();
    world.agrees().await;
    says(&world, "a").await;
    world.server.set_denied("list", PODS.plural, false);
    world.server.set_denied("watch", PODS.plural, false);
    says(&world, "a unseen").await;
    world.stop().await;
}

#[tokio::test]
async fn exclusions_do_not_change_the_set() {
    let world = World::with(SimNode::with(quick()), server().await, |settings| {
        let mine = PodPattern { namespace: "default".parse().unwrap(), name: "a".parse().unwrap() };
        settings.rules.exclude =
            Exclude { pods: vec![mine], outside_namespace: Some("default".into()), ..Exclude::default() };
    });
    run(&world, &db("a")).await;
    says(&world, "a").await;
    // The fingerprint is withheld for an excluded pod as for any other.
    let excluded = PodSpec { uid: "again".into(), ..db("a") };
    assert!(world.node.kubelet.stop_pod("default", "a"));
    assert!(world.server.delete(&PODS, "default", "a"));
    says(&world, "").await;
    show(&world, &excluded, "Pending");
    is_held(&world).await;
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_starts_again_says_at_once_what_holds() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    show(&world, &db("waits"), "Pending");
    is_held(&world).await;
    let world = world.halt().await;
    let mut changes = world.server.changes();
    let world = world.again(|_| {});
    world.lists_reach(world.node.kubelet.calls().list + 3).await;
    is_held(&world).await;
    let mut agreed = 0;
    while let Ok(change) = changes.try_recv() {
        let held = change.object.to_string().contains(&Fingerprint::WITHHELD.to_string());
        agreed += usize::from(change.kind == &TOPOLOGIES && !held);
    }
    assert_eq!(agreed, 0, "one pod is still not accounted");
    world.node.kubelet.start_pod(db("waits")).await.unwrap();
    says(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn an_agent_that_stops_leaves_the_object_held() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    says(&world, "a").await;
    let before = world.server.topology("worker").unwrap();
    let world = world.halt().await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    let after = world.server.topology("worker").unwrap();
    assert_eq!(before.spec.zones, after.spec.zones);
    let world = world.again(|_| {});
    says(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn what_an_agent_left_that_was_killed_is_held_if_the_node_cannot_be_read() {
    let first = world(|_| {}).await;
    run(&first, &db("a")).await;
    says(&first, "a").await;
    let agreed = first.server.topology("worker").unwrap();
    let first = first.kill().await;
    assert_eq!(first.server.topology("worker").unwrap().spec, agreed.spec);
    first.node.kubelet.fail_next(Call::List, 1000, &Limit::Hang);
    let second = first.again(|settings| settings.kubelet_timeout = Duration::from_millis(200));
    show(&second, &db("b"), "Pending");
    is_held(&second).await;
    let held = second.server.topology("worker").unwrap();
    assert_eq!(
        (held.spec.zones, held.metadata.owner_references),
        (agreed.spec.zones, agreed.metadata.owner_references)
    );
    second.node.kubelet.clear_faults();
    second.node.kubelet.start_pod(db("b")).await.unwrap();
    says(&second, "a").await;
    second.agrees().await;
    second.stop().await;
}

#[tokio::test]
async fn until_somebody_tells_which_pods_there_are_the_object_is_held() {
    let server = server().await;
    server.set_denied("list", PODS.plural, true);
    let world = World::with(SimNode::with(quick()), server, |_| {});
    world.agrees().await;
    is_held(&world).await;
    world.server.set_denied("list", PODS.plural, false);
    says(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn the_first_object_waits_for_the_pods() {
    let server = server().await;
    server.put(&PODS, db("a").object("worker", "Running")).unwrap();
    server.inject(numacast::sim::api_server::Rule {
        verb: Some("list"),
        resource: Some("pods"),
        times: Some(1),
        fault: Fault::Delay(Duration::from_millis(300)),
    });
    let node = SimNode::with(quick());
    node.kubelet.start_pod(db("a")).await.unwrap();
    let world = World::with(node, server, |_| {});
    world.agrees().await;
    says(&world, "a").await;
    assert_eq!(world.server.writes().changes, 1, "not first without them");
    world.stop().await;
}

#[tokio::test]
async fn other_informers_views_and_methods_have_other_sets() {
    let pods = |world: &World| {
        show(world, &db("a"), "Running");
        show(world, &db("ended"), "Succeeded");
        show(world, &PodSpec::new("modest"), "Running");
    };
    use FingerprintMethod::{All, WithExclusiveResources};
    for (selection, names) in [
        ((FingerprintView::Scheduler, All, Informer::Dedicated), Some("a ended modest")),
        ((FingerprintView::Scheduler, All, Informer::Shared), Some("a modest")),
        ((FingerprintView::Scheduler, WithExclusiveResources, Informer::Dedicated), Some("a ended")),
        ((FingerprintView::Kubelet, All, Informer::Dedicated), Some("a listed")),
        ((FingerprintView::Kubelet, WithExclusiveResources, Informer::Dedicated), Some("a")),
        ((FingerprintView::None, All, Informer::Dedicated), None),
    ] {
        let world = world(|settings| {
            (settings.gate.view, settings.gate.method, settings.gate.informer) = selection;
        })
        .await;
        pods(&world);
        world.node.kubelet.start_pod(db("a")).await.unwrap();
        world.node.kubelet.start_pod(PodSpec::new("listed")).await.unwrap();
        world.agrees().await;
        match names {
            Some(names) => says(&world, names).await,
            None => assert_eq!(fingerprint(&world.server), ""),
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn sidecars_hold_like_others_and_init_containers_do_not() {
    let world = world(|_| {}).await;
    let mut pod = db("a");
    pod.containers[0].milli_cpu = 1500;
    let mut sidecar = pod.containers[0].clone();
    (sidecar.name, sidecar.role, sidecar.milli_cpu) = ("beside".into(), Role::Sidecar, 1000);
    let mut init = sidecar.clone();
    (init.name, init.role, init.milli_cpu) = ("first".into(), Role::Init, 3000);
    pod.containers.splice(0..0, [init, sidecar]);
    show(&world, &pod, "Pending");
    is_held(&world).await;
    run(&world, &pod).await;
    says(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn the_status_file_names_the_pods() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("status.json");
    let to = file.clone();
    let world = world(|settings| settings.status_file = Some(to)).await;
    run(&world, &db("a")).await;
    says(&world, "a").await;
    let read = || -> Option<Value> { serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok() };
    // The file is written after the object and may be slightly behind.
    let named = || {
        let status = read()?;
        let same = status["fingerprintComputed"] == json!(fingerprint(&world.server));
        (same && status["pods"] == json!([{"Namespace": "default", "Name": "a"}])).then_some(())
    };
    world.until(named).await;
    assert_eq!(read().unwrap()["nodeName"], "worker");
    show(&world, &db("b"), "Pending");
    is_held(&world).await;
    world
        .until(|| (read()?["withheldFor"] == json!([{"Namespace": "default", "Name": "b"}])).then_some(()))
        .await;
    world.stop().await;
}

#[tokio::test]
async fn placements_go_out_with_the_fingerprint_and_are_left_out_while_it_is_held() {
    const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
    let mut spec = machine("two-by-eight");
    spec.kubelet.insert("topologyManagerPolicy".to_owned(), json!("single-numa-node"));
    let world = World::with(SimNode::of(&spec, quick()), server().await, |_| {});
    run(&world, &db("a").on([0])).await;
    run(&world, &db("b").on([1])).await;
    says(&world, "a b").await;
    let expected = "npv0v001::ve=leb89::cc=2::nn=2::bn=0";
    world.until(|| (attribute(&world.server, METADATA)? == expected).then_some(())).await;
    let object = world.server.topology("worker").unwrap();
    let vectors: Vec<_> = object.spec.zones.iter().map(|zone| zone.attributes.is_some()).collect();
    assert_eq!(vectors, [false, true]);
    show(&world, &db("c"), "Pending");
    is_held(&world).await;
    world.until(|| attribute(&world.server, METADATA).is_none().then_some(())).await;
    world.stop().await;
}
