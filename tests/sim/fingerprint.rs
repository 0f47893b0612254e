//! The pods that the fingerprint covers, and when it is withheld: whatever could block a node for scheduling,
//! or make the scheduler plugin use the object too early.

use std::time::Duration;

use numacast::agent::Settings;
use numacast::scheduler::{Fingerprint, FingerprintMethod, FingerprintView, Informer, pod_hash};
use numacast::sim::api_server::{ApiServer, EVENTS, Fault, PODS, Rule, TOPOLOGIES};
use numacast::sim::kubelet::{Call, Fault as KubeletFault, PodSpec, Role};
use numacast::topology::Exclude;
use numacast::util::glob::PodPattern;
use serde_json::{Value, json};

use crate::support::{Node, machine};
use crate::world::{World, api_server, quick};

const GIB: u64 = 1 << 30;

async fn world(change: impl FnOnce(&mut Settings)) -> World {
    let world = World::with(Node::with(quick()), api_server().await, change);
    world.converges().await;
    world
}

fn db(name: &str) -> PodSpec {
    PodSpec::guaranteed(name, 2, GIB)
}

/// Binds, admits and starts a pod.
async fn run(world: &World, pod: &PodSpec) {
    world.put_pod(pod, "Pending");
    world.node.kubelet.start_pod(pod.clone()).await.unwrap();
    world.put_pod(pod, "Running");
}

fn attribute(server: &ApiServer, name: &str) -> Option<String> {
    let object = server.topology("worker")?;
    object.spec.attributes.into_iter().flatten().find(|a| a.name == name).map(|a| a.value)
}

fn fingerprint(server: &ApiServer) -> String {
    attribute(server, "nodeTopologyPodsFingerprint").unwrap_or_default()
}

/// Waits until the fingerprint covers exactly these pods of the namespace `default`.
async fn covers(world: &World, names: &str) {
    let hashes = names.split_whitespace().map(|name| pod_hash("default", name));
    let expected = Fingerprint::of(hashes).to_string();
    world.wait_for(|| (fingerprint(&world.server) == expected).then_some(())).await;
}

/// Waits until the fingerprint is withheld.
async fn is_withheld(world: &World) {
    let withheld = Fingerprint::WITHHELD.to_string();
    world.wait_for(|| (fingerprint(&world.server) == withheld).then_some(())).await;
}

#[tokio::test]
async fn the_fingerprint_is_withheld_from_the_binding_to_the_allocation() {
    let world = world(|_| {}).await;
    covers(&world, "").await;
    world.put_pod(&db("a"), "Pending");
    is_withheld(&world).await;
    world.node.kubelet.add_pod(db("a")).unwrap();
    world.wait_for_lists(world.node.kubelet.calls().list + 2).await;
    assert_eq!(
        fingerprint(&world.server),
        Fingerprint::WITHHELD.to_string(),
        "it is listed before it is admitted"
    );
    world.node.kubelet.admit_pod("uid-a").unwrap();
    covers(&world, "").await;
    world.converges().await;
    world.put_pod(&db("a"), "Running");
    covers(&world, "a").await;
    assert_eq!(attribute(&world.server, "nodeTopologyPodsFingerprintMethod").unwrap(), "all");
    world.stop().await;
}

#[tokio::test]
async fn pods_without_exclusive_resources_do_not_withhold_the_fingerprint() {
    let world = world(|_| {}).await;
    let mut changes = world.server.changes();
    world.put_pod(&PodSpec::new("modest"), "Pending");
    world.put_pod(&PodSpec::new("modest"), "Running");
    covers(&world, "modest").await;
    while let Ok(change) = changes.try_recv() {
        assert!(!change.object.to_string().contains(&Fingerprint::WITHHELD.to_string()), "{}", change.object);
    }
    world.stop().await;
}

#[tokio::test]
async fn the_fingerprint_is_withheld_while_the_kubelet_does_not_respond() {
    let world = world(|_| {}).await;
    world.node.kubelet.fail_next(Call::List, 1000, &KubeletFault::Hang);
    // Triggers a scan, whose List hangs.
    std::fs::write(world.node.root().join("var/lib/kubelet/cpu_manager_state.other"), "").unwrap();
    world.put_pod(&db("a"), "Pending");
    is_withheld(&world).await;
    world.stop().await;
}

#[tokio::test]
async fn a_deleted_pod_no_longer_withholds_the_fingerprint_although_lists_fail() {
    let world = world(|_| {}).await;
    // Scans fail at once, so the agent is nearly always between two of them.
    world.node.kubelet.fail_next(
        Call::List,
        1000,
        &KubeletFault::Status(tonic::Code::Unavailable, "not now".into()),
    );
    world.put_pod(&db("a"), "Pending");
    is_withheld(&world).await;
    world.wait_for_lists(world.node.kubelet.calls().list + 2).await;
    assert!(world.server.delete(&PODS, "default", "a"));
    covers(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn unpullable_terminated_and_rejected_pods_do_not_withhold_the_fingerprint() {
    let world = world(|_| {}).await;
    // Admitted, but its image can never be pulled.
    world.put_pod(&db("unpullable"), "Pending");
    world.node.kubelet.start_pod(db("unpullable")).await.unwrap();
    run(&world, &db("done")).await;
    world.node.kubelet.terminate_pod("default", "done");
    world.put_pod(&db("done"), "Succeeded");
    // Rejected: it never had resources in a List.
    world.put_pod(&db("rejected"), "Pending");
    is_withheld(&world).await;
    world.put_pod(&db("rejected"), "Failed");
    covers(&world, "done rejected").await;
    run(&world, &db("next")).await;
    covers(&world, "done rejected next").await;
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn a_pod_deleted_before_its_admission_withholds_the_fingerprint_until_it_is_terminal() {
    let world = world(|_| {}).await;
    world.put_pod(&db("a"), "Pending");
    is_withheld(&world).await;
    // A finalizer keeps it, and the kubelet may admit it before it sees the deletion.
    let deleted = |phase: &str| {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        world.server.put(&PODS, object).unwrap();
    };
    deleted("Pending");
    world.wait_for_lists(world.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    deleted("Failed");
    covers(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn a_list_before_its_admission_does_not_account_for_a_deleted_pod() {
    let world = world(|_| {}).await;
    covers(&world, "").await;
    let free = |zones: &Value| -> u64 {
        let resources =
            zones.as_array().unwrap().iter().flat_map(|zone| zone["resources"].as_array().unwrap());
        let cpus = resources.filter(|resource| resource["name"] == "cpu");
        cpus.map(|cpu| cpu["available"].as_str().unwrap().parse::<u64>().unwrap()).sum()
    };
    let mut changes = world.server.changes();
    // Other clients use up the kubelet's shared rate limit for some seconds.
    let limited = KubeletFault::Status(tonic::Code::ResourceExhausted, "rejected by rate limit".into());
    world.node.kubelet.fail_next(Call::List, 5, &limited);
    run(&world, &db("a")).await;
    let mut deleted = db("a").object("worker", "Running");
    deleted["metadata"]["deletionTimestamp"] = json!("2026-11-23T04:00:00Z");
    world.server.put(&PODS, deleted).unwrap();
    covers(&world, "a").await;
    let covering = Fingerprint::of([pod_hash("default", "a")]).to_string();
    while let Ok(change) = changes.try_recv() {
        if change.object.to_string().contains(&covering) {
            assert_eq!(free(&change.object["zones"]), 12, "it has two of 14 CPUs: {}", change.object);
        }
    }
    world.stop().await;
}

#[tokio::test]
async fn a_pod_with_a_finalizer_is_in_the_fingerprint_until_it_is_removed() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    covers(&world, "a").await;
    world.node.kubelet.stop_pod("default", "a");
    for phase in ["Running", "Succeeded"] {
        let mut object = db("a").object("worker", phase);
        object["metadata"]["deletionTimestamp"] = json!("2026-11-21T14:00:00Z");
        object["metadata"]["finalizers"] = json!(["example.com/slow"]);
        world.server.put(&PODS, object).unwrap();
        world.converges().await;
        covers(&world, "a").await;
    }
    assert!(world.server.delete(&PODS, "default", "a"));
    covers(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn a_pod_with_the_name_of_one_deleted_by_force_is_another_pod() {
    let world = world(|_| {}).await;
    run(&world, &db("web-0")).await;
    covers(&world, "web-0").await;
    assert!(world.server.delete(&PODS, "default", "web-0"));
    covers(&world, "").await;
    // Another pod with the same name is bound before the kubelet has terminated the first.
    let again = PodSpec { uid: "again".into(), ..db("web-0") };
    world.put_pod(&again, "Pending");
    is_withheld(&world).await;
    assert!(world.node.kubelet.stop_pod("default", "web-0"));
    // Unless its removal is seen, the List's entry would be taken for the first pod's until the second one
    // runs.
    world.wait_for_lists(world.node.kubelet.calls().list + 2).await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    world.node.kubelet.start_pod(again.clone()).await.unwrap();
    covers(&world, "").await;
    world.put_pod(&again, "Running");
    covers(&world, "web-0").await;
    world.converges().await;
    world.stop().await;
}

#[tokio::test]
async fn a_static_pod_is_in_the_fingerprint_once_its_mirror_pod_exists() {
    let world = world(|_| {}).await;
    world.node.kubelet.start_pod(db("static-worker")).await.unwrap();
    world.converges().await;
    // The API server rejected the mirror pod, so the plugin does not know the pod.
    covers(&world, "").await;
    let mut mirror = PodSpec { uid: "mirror".into(), ..db("static-worker") }.object("worker", "Running");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    mirror["status"]["qosClass"] = json!("BestEffort");
    world.server.put(&PODS, mirror).unwrap();
    covers(&world, "static-worker").await;
    world.stop().await;
}

#[tokio::test]
async fn withholding_the_fingerprint_times_out_per_pod() {
    let world = world(|settings| settings.gate.give_up_after = Duration::from_millis(700)).await;
    world.put_pod(&db("lost"), "Pending");
    is_withheld(&world).await;
    covers(&world, "").await;
    let is_reported = || {
        let events = world.server.list(&EVENTS, "default");
        let is_lost = |event: &Value| {
            event["reason"] == "PodAdmissionTimeout" && event["note"].to_string().contains("default/lost")
        };
        events.iter().any(|event| is_lost(event)).then_some(())
    };
    world.wait_for(is_reported).await;
    // The time limit applies to this pod alone.
    world.put_pod(&db("a"), "Pending");
    is_withheld(&world).await;
    world.node.kubelet.start_pod(db("a")).await.unwrap();
    covers(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn the_last_set_of_pods_is_used_while_the_watch_is_broken() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    covers(&world, "a").await;
    world.server.set_denied("list", PODS.plural, true);
    world.server.set_denied("watch", PODS.plural, true);
    world.server.cut_connections();
    world.server.compact_history();
    world.put_pod(&PodSpec::new("unseen"), "Running");
    world.node.kubelet.start_pod(db("b")).await.unwrap();
    world.converges().await;
    covers(&world, "a").await;
    world.server.set_denied("list", PODS.plural, false);
    world.server.set_denied("watch", PODS.plural, false);
    covers(&world, "a unseen").await;
    world.stop().await;
}

#[tokio::test]
async fn excluded_pods_are_in_the_fingerprint() {
    let world = World::with(Node::with(quick()), api_server().await, |settings| {
        let pattern = PodPattern { namespace: "default".parse().unwrap(), name: "a".parse().unwrap() };
        settings.rules.exclude =
            Exclude { pods: vec![pattern], outside_namespace: Some("default".into()), ..Exclude::default() };
    });
    run(&world, &db("a")).await;
    covers(&world, "a").await;
    // The fingerprint is withheld for an excluded pod as for any other.
    let excluded = PodSpec { uid: "again".into(), ..db("a") };
    assert!(world.node.kubelet.stop_pod("default", "a"));
    assert!(world.server.delete(&PODS, "default", "a"));
    covers(&world, "").await;
    world.put_pod(&excluded, "Pending");
    is_withheld(&world).await;
    world.stop().await;
}

#[tokio::test]
async fn a_restarted_agent_does_not_publish_a_fingerprint_too_early() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    world.put_pod(&db("waits"), "Pending");
    is_withheld(&world).await;
    let world = world.stop_agent().await;
    let mut changes = world.server.changes();
    let world = world.restart_agent(|_| {});
    world.wait_for_lists(world.node.kubelet.calls().list + 3).await;
    is_withheld(&world).await;
    let mut published = 0;
    while let Ok(change) = changes.try_recv() {
        let is_withheld = change.object.to_string().contains(&Fingerprint::WITHHELD.to_string());
        published += usize::from(change.kind == &TOPOLOGIES && !is_withheld);
    }
    assert_eq!(published, 0, "one pod is not accounted for");
    world.node.kubelet.start_pod(db("waits")).await.unwrap();
    covers(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn the_fingerprint_is_withheld_when_the_agent_stops() {
    let world = world(|_| {}).await;
    run(&world, &db("a")).await;
    covers(&world, "a").await;
    let before = world.server.topology("worker").unwrap();
    let world = world.stop_agent().await;
    assert_eq!(fingerprint(&world.server), Fingerprint::WITHHELD.to_string());
    let after = world.server.topology("worker").unwrap();
    assert_eq!(before.spec.zones, after.spec.zones);
    let world = world.restart_agent(|_| {});
    covers(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn the_fingerprint_of_a_killed_agent_is_withheld_if_the_node_cannot_be_read() {
    let first = world(|_| {}).await;
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

#[tokio::test]
async fn the_fingerprint_is_withheld_while_the_pods_are_unknown() {
    let server = api_server().await;
    server.set_denied("list", PODS.plural, true);
    let world = World::with(Node::with(quick()), server, |_| {});
    world.converges().await;
    is_withheld(&world).await;
    world.server.set_denied("list", PODS.plural, false);
    covers(&world, "").await;
    world.stop().await;
}

#[tokio::test]
async fn the_first_write_waits_for_the_pods() {
    let server = api_server().await;
    server.put(&PODS, db("a").object("worker", "Running")).unwrap();
    server.inject(Rule {
        verb: Some("list"),
        resource: Some("pods"),
        times: Some(1),
        fault: Fault::Delay(Duration::from_millis(300)),
    });
    let node = Node::with(quick());
    node.kubelet.start_pod(db("a")).await.unwrap();
    let world = World::with(node, server, |_| {});
    world.converges().await;
    covers(&world, "a").await;
    assert_eq!(world.server.writes().changes, 1, "no write lacks them");
    world.stop().await;
}

#[tokio::test]
async fn informer_view_and_method_select_the_pods() {
    let pods = |world: &World| {
        world.put_pod(&db("a"), "Running");
        world.put_pod(&db("ended"), "Succeeded");
        world.put_pod(&PodSpec::new("modest"), "Running");
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
        world.converges().await;
        match names {
            Some(names) => covers(&world, names).await,
            None => assert_eq!(fingerprint(&world.server), ""),
        }
        world.stop().await;
    }
}

#[tokio::test]
async fn sidecars_are_waited_for_and_init_containers_are_not() {
    let world = world(|_| {}).await;
    let mut pod = db("a");
    pod.containers[0].milli_cpu = 1500;
    let mut sidecar = pod.containers[0].clone();
    (sidecar.name, sidecar.role, sidecar.milli_cpu) = ("beside".into(), Role::Sidecar, 1000);
    let mut init = sidecar.clone();
    (init.name, init.role, init.milli_cpu) = ("first".into(), Role::Init, 3000);
    pod.containers.splice(0..0, [init, sidecar]);
    world.put_pod(&pod, "Pending");
    is_withheld(&world).await;
    run(&world, &pod).await;
    covers(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn the_status_file_lists_the_pods() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("status.json");
    let to = file.clone();
    let world = world(|settings| settings.status_file = Some(to)).await;
    run(&world, &db("a")).await;
    covers(&world, "a").await;
    let read = || -> Option<Value> { serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok() };
    // The file is written after the object.
    let named = || {
        let status = read()?;
        let same = status["fingerprintComputed"] == json!(fingerprint(&world.server));
        (same && status["pods"] == json!([{"Namespace": "default", "Name": "a"}])).then_some(())
    };
    world.wait_for(named).await;
    assert_eq!(read().unwrap()["nodeName"], "worker");
    world.put_pod(&db("b"), "Pending");
    is_withheld(&world).await;
    world
        .wait_for(|| (read()?["withheldFor"] == json!([{"Namespace": "default", "Name": "b"}])).then_some(()))
        .await;
    world.stop().await;
}

#[tokio::test]
async fn placements_are_published_with_the_fingerprint_only() {
    const METADATA: &str = "topology.node.k8s.io/numaplacement-metadata";
    let mut spec = machine("two-by-eight");
    spec.kubelet.insert("topologyManagerPolicy".to_owned(), json!("single-numa-node"));
    let world = World::with(Node::with_machine(&spec, quick()), api_server().await, |_| {});
    run(&world, &db("a").on([0])).await;
    run(&world, &db("b").on([1])).await;
    covers(&world, "a b").await;
    let expected = "npv0v001::ve=leb89::cc=2::nn=2::bn=0";
    world.wait_for(|| (attribute(&world.server, METADATA)? == expected).then_some(())).await;
    let object = world.server.topology("worker").unwrap();
    let vectors: Vec<_> = object.spec.zones.iter().map(|zone| zone.attributes.is_some()).collect();
    assert_eq!(vectors, [false, true]);
    world.put_pod(&db("c"), "Pending");
    is_withheld(&world).await;
    world.wait_for(|| attribute(&world.server, METADATA).is_none().then_some(())).await;
    world.stop().await;
}
