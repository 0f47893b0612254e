//! Tests of the model: nodes must freeze and pods must be rejected where they are with the real parts.

use super::bug::Bug;
use super::cluster::{Kind, Phase, Pod, PodId, Request};
use super::controller::Nudges;
use super::exporter::{Exporter, ExporterKind};
use super::load::{self, Load, create_initial_pods};
use super::measurements::Cause;
use super::plugin::{Cache, Informer};
use super::queue::Backoff;
use super::settings::{Delays, Settings};
use super::simulation::{DriverEvent, ExporterInput, Simulation, Watcher, guaranteed};
use super::time::{MS, S, Span};
use super::walk::{self, Walk};

/// Starts a simulation with one node.
fn start(exporter: ExporterKind, nudges: Nudges, settings: Settings) -> Simulation {
    let exporters = exporter.create(settings.informer, 1);
    let mut sim = Simulation::new(Settings { nudges, ..settings }, 7, exporters);
    create_initial_pods(&mut sim, false);
    run_for(&mut sim, 10);
    sim
}

fn run_for(sim: &mut Simulation, seconds: u64) {
    let end = sim.now + seconds * S;
    sim.run_until(end, &mut |sim, event| {
        if let DriverEvent::Timer(token) = event {
            sim.resume(token);
        }
    });
}

fn phase(sim: &Simulation, id: PodId) -> Option<Phase> {
    sim.pods[id].object.map(|state| state.phase)
}

/// Creates a pod with this many CPUs that never ends.
fn create(sim: &mut Simulation, name: &str, cpus: u32) -> PodId {
    let pod = guaranteed(name.into(), cpus, sim.now);
    sim.create(pod)
}

/// Returns true if a pod of six CPUs runs within 15 minutes after two others filled a zone each and one of
/// them was deleted.
fn released_cpus_are_reused(sim: &mut Simulation) -> bool {
    let first = create(sim, "first", 6);
    run_for(sim, 15);
    let second = create(sim, "second", 6);
    run_for(sim, 600);
    sim.delete(first, false);
    run_for(sim, 15);
    let third = create(sim, "third", 6);
    run_for(sim, 900);
    phase(sim, second) == Some(Phase::Running) && phase(sim, third) == Some(Phase::Running)
}

fn unpullable(sim: &mut Simulation) {
    let pod = Pod { kind: Kind::Unpullable, ..guaranteed("unpullable".into(), 1, sim.now) };
    sim.create(pod);
}

fn completed(sim: &mut Simulation) {
    let pod = Pod { run_time: S, ..guaranteed("completed".into(), 1, sim.now) };
    sim.create(pod);
}

fn rejected(sim: &mut Simulation) {
    let pod = guaranteed("rejected".into(), 64, sim.now);
    sim.create_bound(pod, 0);
}

#[test]
fn pods_without_running_containers_freeze_a_node_whose_exporter_publishes_the_list() {
    let peers = [
        (ExporterKind::Nfd, Nudges::None),
        (ExporterKind::Rte, Nudges::None),
        (ExporterKind::KubeletView, Nudges::default_plan()),
    ];
    let numacast = [(ExporterKind::DEFAULT, Nudges::default_plan()), (ExporterKind::DEFAULT, Nudges::None)];
    for odd in [unpullable, completed, rejected] {
        for (exporter, nudges) in peers.into_iter().chain(numacast) {
            let mut sim = start(exporter, nudges, Settings::default());
            odd(&mut sim);
            run_for(&mut sim, 20);
            let reused = released_cpus_are_reused(&mut sim);
            assert_eq!(reused, exporter == ExporterKind::DEFAULT, "{}", exporter.name());
        }
    }
    for (exporter, nudges) in peers {
        let mut sim = start(exporter, nudges, Settings::default());
        assert!(released_cpus_are_reused(&mut sim), "{} without odd pods", exporter.name());
    }
}

#[test]
fn a_completed_pod_does_not_freeze_a_node_with_the_shared_informer() {
    let settings = Settings { informer: Informer::Shared, ..Settings::default() };
    for (odd, runs) in [(completed as fn(&mut Simulation), true), (unpullable, false)] {
        let mut sim = start(ExporterKind::KubeletView, Nudges::default_plan(), settings.clone());
        odd(&mut sim);
        run_for(&mut sim, 20);
        assert_eq!(released_cpus_are_reused(&mut sim), runs);
    }
}

#[test]
fn the_cache_is_not_refreshed_while_all_pods_are_pending() {
    for runs in [false, true] {
        let exporters = ExporterKind::DEFAULT.create(Informer::Dedicated, 1);
        let settings = Settings { nudges: Nudges::default_plan(), ..Settings::default() };
        let mut sim = Simulation::new(settings, 7, exporters);
        if runs {
            create_initial_pods(&mut sim, false);
            run_for(&mut sim, 20);
        }
        unpullable(&mut sim);
        run_for(&mut sim, 5);
        let flushes = sim.nodes[0].plugin.flushes;
        // Seven fit into a zone, but the plugin deducts one CPU from both.
        let pod = create(&mut sim, "pod", 7);
        run_for(&mut sim, 900);
        assert_eq!(sim.nodes[0].plugin.flushes > flushes, runs);
        assert_eq!(phase(&sim, pod) == Some(Phase::Running), runs);
    }
}

/// Always publishes that the node is free, with the fingerprint that the plugin expects.
struct AlwaysFree;

impl Exporter for AlwaysFree {
    fn handle(&mut self, sim: &mut Simulation, input: ExporterInput) {
        if matches!(input, ExporterInput::Started | ExporterInput::Timer(_)) {
            let expected = sim.nodes[0].plugin.expected(&sim.pods);
            let object = super::cluster::Object {
                available: sim.settings.zones.clone(),
                policy: true,
                fingerprint: expected.map(|expected| expected.all),
                counter: sim.now,
                ..Default::default()
            };
            sim.write(0, object);
            sim.wake_at(0, sim.now + 100 * MS, 0);
        }
    }
}

#[test]
fn a_fingerprint_that_matches_too_early_leads_to_a_rejected_pod() {
    let mut sim = Simulation::new(Settings::default(), 7, vec![Box::new(AlwaysFree)]);
    create_initial_pods(&mut sim, false);
    run_for(&mut sim, 5);
    // Each fits alone. The third does not fit beside the other two, although the node has enough in total.
    let pods = ["a", "b", "c"].map(|name| create(&mut sim, name, 4));
    run_for(&mut sim, 120);
    let failed = pods.iter().filter(|pod| phase(&sim, **pod) == Some(Phase::Failed)).count();
    assert_eq!(failed, 1);
    assert_eq!(sim.measurements.rejected_for(Cause::Avoidable), 1);
}

#[test]
fn a_pod_is_rejected_without_the_plugin() {
    let settings = Settings { plugin: false, ..Settings::default() };
    let mut sim = start(ExporterKind::None, Nudges::None, settings);
    let pods = ["a", "b", "c"].map(|name| create(&mut sim, name, 4));
    run_for(&mut sim, 20);
    assert_eq!(pods.iter().filter(|pod| phase(&sim, **pod) == Some(Phase::Failed)).count(), 1);
}

#[test]
fn all_pods_of_a_burst_that_fit_are_placed() {
    for (nudges, soon) in [(Nudges::default_plan(), true), (Nudges::None, false)] {
        let mut sim = start(ExporterKind::DEFAULT, nudges, Settings::default());
        let pods = ["a", "b", "c", "d"].map(|name| create(&mut sim, name, 3));
        run_for(&mut sim, 30);
        let run = pods.iter().filter(|pod| phase(&sim, **pod) == Some(Phase::Running)).count();
        assert_eq!(run == 4, soon, "{run}");
        run_for(&mut sim, 1200);
        assert!(pods.iter().all(|pod| phase(&sim, *pod) == Some(Phase::Running)));
    }
}

#[test]
fn a_pod_of_another_scheduler_blocks_the_node_until_the_next_tick() {
    let mut sim = start(ExporterKind::DEFAULT, Nudges::default_plan(), Settings::default());
    let other = Pod::new("other".into(), Request::BEST_EFFORT, sim.now);
    sim.create_bound(other, 0);
    let end = sim.now + 50 * MS;
    sim.run_until(end, &mut |_, _| {});
    let pod = create(&mut sim, "pod", 1);
    let end = sim.now + 300 * MS;
    sim.run_until(end, &mut |_, _| {});
    assert_eq!(sim.pods[pod].reserved, None);
    run_for(&mut sim, 15);
    assert_eq!(phase(&sim, pod), Some(Phase::Running));
}

#[test]
fn an_update_of_any_object_requeues_every_pod_that_the_plugin_rejected() {
    let settings =
        Settings { backoff: Backoff { early: true, ..Settings::default().backoff }, ..Settings::default() };
    let exporters = ExporterKind::DEFAULT.create(Informer::Dedicated, 3);
    let mut sim = Simulation::new(settings, 7, exporters);
    create_initial_pods(&mut sim, false);
    run_for(&mut sim, 10);
    // No zone has eight CPUs.
    create(&mut sim, "large", 8);
    run_for(&mut sim, 20);
    let cycles = sim.measurements.cycles;
    run_for(&mut sim, 60);
    assert_eq!(sim.measurements.cycles, cycles, "there is no event");
    let other = Pod::new("other".into(), Request::BEST_EFFORT, sim.now);
    sim.create_bound(other, 2);
    run_for(&mut sim, 5);
    assert!(sim.measurements.cycles > cycles, "the object of one node changed");
}

#[test]
fn the_controller_nudges_only_while_a_pod_is_pending() {
    let mut sim = start(ExporterKind::DEFAULT, Nudges::default_plan(), Settings::default());
    create(&mut sim, "small", 1);
    run_for(&mut sim, 120);
    assert_eq!(sim.measurements.nudges, 0, "no pod is pending");
    let large = create(&mut sim, "large", 8);
    run_for(&mut sim, 120);
    let nudges = sim.measurements.nudges;
    assert!((3..10).contains(&nudges), "{nudges}");
    sim.delete(large, false);
    run_for(&mut sim, 1);
    let nudges = sim.measurements.nudges;
    run_for(&mut sim, 120);
    assert_eq!(sim.measurements.nudges, nudges, "the pod was deleted");
}

#[test]
fn a_flush_forgets_a_pod_that_is_reserved_and_not_bound() {
    let mut sim = start(ExporterKind::DEFAULT, Nudges::default_plan(), Settings::default());
    sim.settings.delays.late_bind = Span(60 * S, 60 * S);
    let mut late = guaranteed("late".into(), 4, sim.now);
    late.binds_late = true;
    let late = sim.create(late);
    run_for(&mut sim, 1);
    assert!(sim.pods[late].reserved.is_some() && sim.pods[late].bound.is_none());
    // The plugin deducts its four CPUs from both zones of seven. A pod that does not fit beside it marks the
    // node, and the next tick forgets it.
    let pods = ["a", "b"].map(|name| create(&mut sim, name, 4));
    run_for(&mut sim, 120);
    let failed =
        pods.into_iter().chain([late]).filter(|pod| phase(&sim, *pod) == Some(Phase::Failed)).count();
    assert_eq!((failed, sim.measurements.rejected_for(Cause::Unbound)), (1, 1));
}

/// Runs a load with a direct cache. Returns the numbers of avoidable and of other rejections.
fn rejected_with_direct_cache(cache: Cache, reserves: bool) -> (usize, usize) {
    let settings = Settings { cache, grace: Delays::default().grace(0), ..Settings::default() };
    let load = Load {
        percent: 110,
        sizes: &[1, 2, 3, 4],
        run_time: 2 * S,
        min_run_time: S / 3,
        replace_after: Span(0, 10 * MS),
        odd_pods: true,
        late_per_mille: 0,
        time: 300 * S,
    };
    let exporters = ExporterKind::Direct { reserves }.create(Informer::Dedicated, 1);
    let outcome = load::run(settings, &load, exporters, 11);
    assert!(outcome.busy > 0.6, "{outcome:?}");
    assert_eq!(outcome.unknown, 0);
    (outcome.rejected_avoidably, outcome.rejected - outcome.rejected_avoidably)
}

#[test]
fn with_direct_caches_reservations_prevent_rejected_pods() {
    for cache in [Cache::DiscardReserved, Cache::Passthrough] {
        let [with, without] = [true, false].map(|reserves| rejected_with_direct_cache(cache, reserves));
        assert_eq!(with.0, 0, "{cache:?}: {with:?}");
        assert!(without.0 > 5 && with.0 + with.1 < without.0 + without.1, "{cache:?}: {with:?} {without:?}");
    }
}

#[test]
fn a_restarted_exporter_reserves_before_its_first_write() {
    let mut settings = Settings { cache: Cache::DiscardReserved, ..Settings::default() };
    // The kubelet lists the pod without CPUs, and a starting exporter receives its pods late.
    settings.delays.admission = Span(60 * S, 60 * S);
    settings.delays.watch[Watcher::Exporter as usize] = Span(2 * S, 2 * S);
    let exporters = ExporterKind::Direct { reserves: true }.create(Informer::Dedicated, 1);
    let mut sim = Simulation::new(settings, 7, exporters);
    let pod = create(&mut sim, "pod", 4);
    run_for(&mut sim, 5);
    let available = |sim: &Simulation| sim.nodes[0].object.as_ref().map(|object| object.available.clone());
    assert_eq!((phase(&sim, pod), available(&sim)), (Some(Phase::Pending), Some(vec![3, 3])));
    sim.restart_exporter(0, S, true);
    for _ in 0..5 {
        run_for(&mut sim, 1);
        assert_eq!(available(&sim), Some(vec![3, 3]), "{}", sim.now);
    }
    assert_eq!(sim.measurements.restarts, 1);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let walk = Walk { steps: 300, nodes: 2, foreign: true, faults: true, ..Walk::default() };
    let report = |seed| {
        let report = walk::run(&walk, seed, ExporterKind::DEFAULT);
        (report.measurements.events, report.placed, report.measurements.writes, report.time)
    };
    assert_eq!(report(3), report(3));
    assert_ne!(report(3), report(4));
}

/// The short form of `make model`.
#[test]
fn no_pod_is_rejected_avoidably_and_no_node_freezes() {
    let seed = numacast_sim::seed();
    eprintln!("NUMACAST_SEED={seed}");
    for number in 0..6 {
        let informer = if number % 2 == 0 { Informer::Dedicated } else { Informer::Shared };
        let nodes = if number % 3 == 2 { 3 } else { 1 };
        let walk =
            Walk { steps: 250, informer, nodes, foreign: number > 3, faults: number > 1, ..Walk::default() };
        let seed = seed.wrapping_add(number);
        let report = walk::run(&walk, seed, ExporterKind::DEFAULT);
        assert!(report.placed > 0);
        let rejected = [Cause::Avoidable, Cause::Unknown].map(|cause| report.rejected_for(cause));
        assert_eq!(rejected, [0, 0], "{seed}");
        assert!(!report.frozen, "{seed}");
    }
}

#[test]
fn the_walk_detects_bugs() {
    let mut failures = [0; 2];
    // The settings of a walk depend on its seed, and only some of them reveal a bug.
    for seed in 0..60 {
        for (bug, failures) in [Bug::NeverWithholds, Bug::StaleZones].into_iter().zip(&mut failures) {
            let walk = Walk { steps: 400, ..Walk::default() };
            let report = walk::run(&walk, seed, ExporterKind::WithBug(bug));
            *failures += report.measurements.forgotten_avoidably;
        }
    }
    assert!(failures.iter().all(|count| *count > 0), "{failures:?}");
}

#[test]
fn some_walks_have_slow_watches() {
    let walk = Walk { steps: 1, informer: Informer::Shared, ..Walk::default() };
    let mut rng = super::random::Random::new(1);
    let drawn: Vec<Span> = (0..50).map(|_| walk::settings(&walk, &mut rng).delays.watch[2]).collect();
    assert!(drawn.iter().any(|span| span.1 > 400 * MS) && drawn.iter().any(|span| span.1 < 10 * MS));
}

#[test]
fn a_starting_kubelet_does_not_admit_the_pods_of_another_node() {
    let exporters = ExporterKind::DEFAULT.create(Informer::Dedicated, 2);
    let mut sim = Simulation::new(Settings::default(), 7, exporters);
    create_initial_pods(&mut sim, false);
    run_for(&mut sim, 10);
    sim.restart_kubelet(0, 2 * S);
    sim.restart_kubelet(1, 20 * S);
    let pod = guaranteed("a".into(), 1, sim.now);
    let pod = sim.create_bound(pod, 1);
    run_for(&mut sim, 10);
    assert_eq!(phase(&sim, pod), Some(Phase::Pending), "its kubelet is down");
    run_for(&mut sim, 60);
    assert_eq!(phase(&sim, pod), Some(Phase::Running));
}
