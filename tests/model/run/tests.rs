//! Tests of the model itself: it must freeze, collide and agree where the real parts do.

use super::chance::{MS, S, Span};
use super::cluster::{Kind, Phase, Pod, PodId, Request};
use super::controller::Nudges;
use super::exporter::{Exporter, Who};
use super::figures::Cause;
use super::load::{self, Load, residents};
use super::ours::Flaw;
use super::plugin::{Cache, Informer};
use super::queue::BackOff;
use super::walk::{self, Walk};
use super::world::{Delays, DriverEvent, Settings, Signal, Watcher, World, guaranteed};

/// Creates a world of one node, with the controller if it is to nudge.
fn world(who: Who, nudges: Nudges, settings: Settings) -> World {
    let exporters = who.exporters(settings.informer, 1);
    let mut world = World::new(Settings { nudges, ..settings }, 7, exporters);
    residents(&mut world, false);
    go_on(&mut world, 10);
    world
}

fn go_on(world: &mut World, seconds: u64) {
    let end = world.now + seconds * S;
    world.run_until(end, &mut |world, driver_event| {
        if let DriverEvent::Drive(token) = driver_event {
            world.comes_back(token);
        }
    });
}

fn phase(world: &World, id: PodId) -> Option<Phase> {
    world.pods[id].object.map(|seen| seen.phase)
}

/// Creates a pod with this many CPUs that never ends.
fn create(world: &mut World, name: &str, cpus: u32) -> PodId {
    let pod = guaranteed(name.into(), cpus, world.now);
    world.create(pod)
}

/// Returns true if a pod of six CPUs runs within 15 minutes after two others filled a zone each and one of
/// them ended.
fn runs_in_a_place_that_was_given_up(world: &mut World) -> bool {
    let first = create(world, "first", 6);
    go_on(world, 15);
    let second = create(world, "second", 6);
    go_on(world, 600);
    world.delete(first, false);
    go_on(world, 15);
    let third = create(world, "third", 6);
    go_on(world, 900);
    phase(world, second) == Some(Phase::Running) && phase(world, third) == Some(Phase::Running)
}

fn unpullable(world: &mut World) {
    let pod = Pod { kind: Kind::Unpullable, ..guaranteed("unpullable".into(), 1, world.now) };
    world.create(pod);
}

fn completed(world: &mut World) {
    let pod = Pod { life: S, ..guaranteed("completed".into(), 1, world.now) };
    world.create(pod);
}

fn rejected(world: &mut World) {
    let pod = guaranteed("rejected".into(), 64, world.now);
    world.create_bound(pod, 0);
}

#[test]
fn everyday_pods_freeze_a_node_for_who_publishes_the_list_and_for_nobody_else() {
    let peers = [(Who::Nfd, Nudges::None), (Who::Rte, Nudges::None), (Who::KubeletView, Nudges::usual())];
    let ours = [(Who::USUAL, Nudges::usual()), (Who::USUAL, Nudges::None)];
    for odd in [unpullable, completed, rejected] {
        for (who, nudges) in peers.into_iter().chain(ours) {
            let mut world = world(who, nudges, Settings::default());
            odd(&mut world);
            go_on(&mut world, 20);
            assert_eq!(runs_in_a_place_that_was_given_up(&mut world), who == Who::USUAL, "{}", who.name());
        }
    }
    for (who, nudges) in peers {
        let mut world = world(who, nudges, Settings::default());
        assert!(runs_in_a_place_that_was_given_up(&mut world), "{} without odd pods", who.name());
    }
}

#[test]
fn a_completed_pod_freezes_nothing_where_the_plugin_does_not_count_it() {
    let settings = Settings { informer: Informer::Shared, ..Settings::default() };
    for (odd, runs) in [(completed as fn(&mut World), true), (unpullable, false)] {
        let mut world = world(Who::KubeletView, Nudges::usual(), settings.clone());
        odd(&mut world);
        go_on(&mut world, 20);
        assert_eq!(runs_in_a_place_that_was_given_up(&mut world), runs);
    }
}

#[test]
fn nothing_is_refreshed_while_all_pods_are_pending() {
    for runs in [false, true] {
        let exporters = Who::USUAL.exporters(Informer::Dedicated, 1);
        let settings = Settings { nudges: Nudges::usual(), ..Settings::default() };
        let mut world = World::new(settings, 7, exporters);
        if runs {
            residents(&mut world, false);
            go_on(&mut world, 20);
        }
        unpullable(&mut world);
        go_on(&mut world, 5);
        let flushes = world.nodes[0].plugin.flushes;
        // Seven fit into a zone, but the plugin deducts one CPU from both.
        let pod = create(&mut world, "pod", 7);
        go_on(&mut world, 900);
        assert_eq!(world.nodes[0].plugin.flushes > flushes, runs);
        assert_eq!(phase(&world, pod) == Some(Phase::Running), runs);
    }
}

/// Always publishes that the node is free, with the fingerprint that the plugin expects.
struct Liar;

impl Exporter for Liar {
    fn hear(&mut self, world: &mut World, signal: Signal) {
        if matches!(signal, Signal::Started | Signal::Timer(_)) {
            let expected = world.nodes[0].plugin.expected(&world.pods);
            let object = super::cluster::Object {
                available: world.settings.zones.clone(),
                policy: true,
                print: expected.map(|expected| expected.all),
                counter: world.now,
                ..Default::default()
            };
            world.write(0, object);
            world.wake_at(0, world.now + 100 * MS, 0);
        }
    }
}

#[test]
fn a_fingerprint_that_comes_true_too_early_lets_pods_collide() {
    let mut world = World::new(Settings::default(), 7, vec![Box::new(Liar)]);
    residents(&mut world, false);
    go_on(&mut world, 5);
    // Each fits alone. The third does not fit beside the other two, although the node has enough in total.
    let pods = ["a", "b", "c"].map(|name| create(&mut world, name, 4));
    go_on(&mut world, 120);
    let failed = pods.iter().filter(|pod| phase(&world, **pod) == Some(Phase::Failed)).count();
    assert_eq!(failed, 1);
    assert_eq!(world.figures.rejected_for(Cause::Late), 1);
}

#[test]
fn a_pod_is_rejected_without_the_plugin() {
    let mut world = world(Who::Nobody, Nudges::None, Settings { plugin: false, ..Settings::default() });
    let pods = ["a", "b", "c"].map(|name| create(&mut world, name, 4));
    go_on(&mut world, 20);
    assert_eq!(pods.iter().filter(|pod| phase(&world, **pod) == Some(Phase::Failed)).count(), 1);
}

#[test]
fn a_burst_is_placed_as_far_as_it_fits() {
    for (nudges, soon) in [(Nudges::usual(), true), (Nudges::None, false)] {
        let mut world = world(Who::USUAL, nudges, Settings::default());
        let pods = ["a", "b", "c", "d"].map(|name| create(&mut world, name, 3));
        go_on(&mut world, 30);
        let run = pods.iter().filter(|pod| phase(&world, **pod) == Some(Phase::Running)).count();
        assert_eq!(run == 4, soon, "{run}");
        go_on(&mut world, 1200);
        assert!(pods.iter().all(|pod| phase(&world, *pod) == Some(Phase::Running)));
    }
}

#[test]
fn a_modest_pod_of_somebody_else_stops_the_node_until_the_next_tick() {
    let mut world = world(Who::USUAL, Nudges::usual(), Settings::default());
    let stranger = Pod::new("stranger".into(), Request::BEST_EFFORT, world.now);
    world.create_bound(stranger, 0);
    let end = world.now + 50 * MS;
    world.run_until(end, &mut |_, _| {});
    let pod = create(&mut world, "pod", 1);
    let end = world.now + 300 * MS;
    world.run_until(end, &mut |_, _| {});
    assert_eq!(world.pods[pod].reserved, None);
    go_on(&mut world, 15);
    assert_eq!(phase(&world, pod), Some(Phase::Running));
}

#[test]
fn an_update_of_any_object_wakes_every_pod_that_the_plugin_rejected() {
    let settings =
        Settings { back_off: BackOff { early: true, ..Settings::default().back_off }, ..Settings::default() };
    let exporters = Who::USUAL.exporters(Informer::Dedicated, 3);
    let mut world = World::new(settings, 7, exporters);
    residents(&mut world, false);
    go_on(&mut world, 10);
    // No zone has eight CPUs.
    create(&mut world, "large", 8);
    go_on(&mut world, 20);
    let cycles = world.figures.cycles;
    go_on(&mut world, 60);
    assert_eq!(world.figures.cycles, cycles, "nothing happens");
    let stranger = Pod::new("stranger".into(), Request::BEST_EFFORT, world.now);
    world.create_bound(stranger, 2);
    go_on(&mut world, 5);
    assert!(world.figures.cycles > cycles, "the object of one node changed");
}

#[test]
fn the_controller_nudges_while_a_pod_waits_and_not_otherwise() {
    let mut world = world(Who::USUAL, Nudges::usual(), Settings::default());
    create(&mut world, "small", 1);
    go_on(&mut world, 120);
    assert_eq!(world.figures.nudges, 0, "nobody waits");
    let large = create(&mut world, "large", 8);
    go_on(&mut world, 120);
    let nudges = world.figures.nudges;
    assert!((3..10).contains(&nudges), "{nudges}");
    world.delete(large, false);
    go_on(&mut world, 1);
    let nudges = world.figures.nudges;
    go_on(&mut world, 120);
    assert_eq!(world.figures.nudges, nudges, "it is gone");
}

#[test]
fn a_flush_forgets_a_pod_that_is_reserved_and_not_bound() {
    let mut world = world(Who::USUAL, Nudges::usual(), Settings::default());
    world.settings.delays.late_bind = Span(60 * S, 60 * S);
    let mut late = guaranteed("late".into(), 4, world.now);
    late.binds_late = true;
    let late = world.create(late);
    go_on(&mut world, 1);
    assert!(world.pods[late].reserved.is_some() && world.pods[late].bound.is_none());
    // The plugin deducts its four CPUs from both zones of seven. A pod that does not fit beside it marks the
    // node, and the next tick forgets it.
    let pods = ["a", "b"].map(|name| create(&mut world, name, 4));
    go_on(&mut world, 120);
    let failed =
        pods.into_iter().chain([late]).filter(|pod| phase(&world, *pod) == Some(Phase::Failed)).count();
    assert_eq!((failed, world.figures.rejected_for(Cause::Unbound)), (1, 1));
}

/// Runs a load with a direct cache. Returns the number of pods that were rejected for a pod that the agent
/// had received, and for other reasons.
fn rejected_directly(cache: Cache, reserves: bool) -> (usize, usize) {
    let settings = Settings { cache, grace: Delays::default().grace(0), ..Settings::default() };
    let load = Load {
        percent: 110,
        sizes: &[1, 2, 3, 4],
        life: 2 * S,
        shortest: S / 3,
        again: Span(0, 10 * MS),
        odd_pods: true,
        late: 0,
        time: 300 * S,
    };
    let exporters = Who::Direct { reserves }.exporters(Informer::Dedicated, 1);
    let outcome = load::run(settings, &load, exporters, 11);
    assert!(outcome.busy > 0.6, "{outcome:?}");
    assert_eq!(outcome.unknown, 0);
    (outcome.rejected_late, outcome.rejected - outcome.rejected_late)
}

#[test]
fn reservations_keep_pods_from_colliding_where_the_object_is_read_directly() {
    for cache in [Cache::DiscardReserved, Cache::Passthrough] {
        let (with, without) = (rejected_directly(cache, true), rejected_directly(cache, false));
        assert_eq!(with.0, 0, "{cache:?}: {with:?}");
        assert!(without.0 > 5 && with.0 + with.1 < without.0 + without.1, "{cache:?}: {with:?} {without:?}");
    }
}

#[test]
fn an_exporter_that_starts_reserves_before_it_writes() {
    let mut settings = Settings { cache: Cache::DiscardReserved, ..Settings::default() };
    // The kubelet lists the pod without CPUs, and a starting exporter receives its pods late.
    settings.delays.admission = Span(60 * S, 60 * S);
    settings.delays.watch[Watcher::Exporter as usize] = Span(2 * S, 2 * S);
    let exporters = Who::Direct { reserves: true }.exporters(Informer::Dedicated, 1);
    let mut world = World::new(settings, 7, exporters);
    let pod = create(&mut world, "pod", 4);
    go_on(&mut world, 5);
    let available = |world: &World| world.nodes[0].object.as_ref().map(|object| object.available.clone());
    assert_eq!((phase(&world, pod), available(&world)), (Some(Phase::Pending), Some(vec![3, 3])));
    world.restart_exporter(0, S, true);
    for _ in 0..5 {
        go_on(&mut world, 1);
        assert_eq!(available(&world), Some(vec![3, 3]), "{}", world.now);
    }
    assert_eq!(world.figures.restarts, 1);
}

#[test]
fn a_run_is_repeated_by_its_seed() {
    let walk = Walk { steps: 300, nodes: 2, foreign: true, faults: true, ..Walk::default() };
    let report = |seed| {
        let report = walk::run(&walk, seed, Who::USUAL);
        (report.figures.events, report.placed, report.figures.writes, report.time)
    };
    assert_eq!(report(3), report(3));
    assert_ne!(report(3), report(4));
}

/// The seed in `NUMACAST_SEED`, or a random one.
fn seed() -> u64 {
    let seed = std::env::var("NUMACAST_SEED")
        .map_or_else(|_| fastrand::u64(..), |text| text.parse().expect("a number"));
    eprintln!("NUMACAST_SEED={seed}");
    seed
}

/// The short form of `make model`.
#[test]
fn no_pod_collides_that_could_have_been_prevented_and_no_node_freezes() {
    let seed = seed();
    for number in 0..6 {
        let informer = if number % 2 == 0 { Informer::Dedicated } else { Informer::Shared };
        let nodes = if number % 3 == 2 { 3 } else { 1 };
        let walk =
            Walk { steps: 250, informer, nodes, foreign: number > 3, faults: number > 1, ..Walk::default() };
        let seed = seed.wrapping_add(number);
        let report = walk::run(&walk, seed, Who::USUAL);
        assert!(report.placed > 0);
        assert_eq!((report.rejected_for(Cause::Late), report.rejected_for(Cause::Unknown)), (0, 0), "{seed}");
        assert!(!report.frozen, "{seed}");
    }
}

#[test]
fn the_walk_detects_what_is_wrong() {
    let mut bad = [0; 2];
    // The settings of a walk depend on its seed, and only some of them reveal a bug.
    for seed in 0..60 {
        for (flaw, bad) in [Flaw::NeverWithholds, Flaw::StaleZones].into_iter().zip(&mut bad) {
            let walk = Walk { steps: 400, ..Walk::default() };
            let report = walk::run(&walk, seed, Who::Broken(flaw));
            *bad += report.figures.forgotten_late;
        }
    }
    assert!(bad.iter().all(|bad| *bad > 0), "{bad:?}");
}

#[test]
fn slow_hands_are_drawn_too() {
    let walk = Walk { steps: 1, informer: Informer::Shared, ..Walk::default() };
    let mut dice = super::chance::Dice::new(1);
    let drawn: Vec<Span> = (0..50).map(|_| walk::settings(&walk, &mut dice).delays.watch[2]).collect();
    assert!(drawn.iter().any(|span| span.1 > 400 * MS) && drawn.iter().any(|span| span.1 < 10 * MS));
}

#[test]
fn a_kubelet_that_starts_does_not_admit_the_pods_of_another_that_is_down() {
    let exporters = Who::USUAL.exporters(Informer::Dedicated, 2);
    let mut world = World::new(Settings::default(), 7, exporters);
    residents(&mut world, false);
    go_on(&mut world, 10);
    world.restart_kubelet(0, 2 * S);
    world.restart_kubelet(1, 20 * S);
    let pod = guaranteed("a".into(), 1, world.now);
    let pod = world.create_bound(pod, 1);
    go_on(&mut world, 10);
    assert_eq!(phase(&world, pod), Some(Phase::Pending), "its kubelet is down");
    go_on(&mut world, 60);
    assert_eq!(phase(&world, pod), Some(Phase::Running));
}
