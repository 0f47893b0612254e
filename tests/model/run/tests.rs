//! The model itself is tried: it must freeze, collide and agree where the real parts do.

use super::chance::{MS, S, Span};
use super::cluster::{Kind, Phase, Pod, PodId, Request};
use super::exporter::{Exporter, PATIENCE, QUIET, Who, usual};
use super::figures::Cause;
use super::load::residents;
use super::ours::Flaw;
use super::plugin::Informer;
use super::walk::{self, Walk};
use super::world::{Notice, Settings, Signal, World, guaranteed};

fn world(who: Who, settings: Settings) -> World {
    let exporter = who.exporter(settings.informer);
    let mut world = World::new(settings, 7, exporter);
    residents(&mut world, false);
    go_on(&mut world, 10);
    world
}

fn go_on(world: &mut World, seconds: u64) {
    let end = world.now + seconds * S;
    world.run_until(end, &mut |world, notice| {
        if let Notice::Drive(token) = notice {
            world.comes_back(token);
        }
    });
}

fn phase(world: &World, id: PodId) -> Option<Phase> {
    world.pods[id].object.map(|seen| seen.phase)
}

/// A pod of so many CPUs that runs on and on.
fn create(world: &mut World, name: &str, cpus: u32) -> PodId {
    let pod = guaranteed(name.into(), cpus, world.now);
    world.create(pod)
}

/// Does a pod of six CPUs run within ten minutes after two others of six filled a zone each, and one of them ended?
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

fn refused(world: &mut World) {
    let pod = guaranteed("refused".into(), 64, world.now);
    world.create_bound(pod);
}

#[test]
fn everyday_pods_freeze_a_node_for_who_publishes_the_list_and_for_nobody_else() {
    let peers = [Who::Nfd, Who::Rte, Who::KubeletView(usual())];
    let ours = [Who::Ours(usual(), PATIENCE), Who::Ours(QUIET, PATIENCE)];
    for odd in [unpullable, completed, refused] {
        for who in peers.into_iter().chain(ours) {
            let mut world = world(who, Settings::default());
            odd(&mut world);
            go_on(&mut world, 20);
            let is_ours = ours.contains(&who);
            assert_eq!(runs_in_a_place_that_was_given_up(&mut world), is_ours, "{}", who.name());
        }
    }
    for who in peers {
        let mut world = world(who, Settings::default());
        assert!(runs_in_a_place_that_was_given_up(&mut world), "{} without odd pods", who.name());
    }
}

#[test]
fn a_completed_pod_freezes_nothing_where_the_plugin_does_not_count_it() {
    let settings = Settings { informer: Informer::Shared, ..Settings::default() };
    for (odd, runs) in [(completed as fn(&mut World), true), (unpullable, false)] {
        let mut world = world(Who::KubeletView(usual()), settings.clone());
        odd(&mut world);
        go_on(&mut world, 20);
        assert_eq!(runs_in_a_place_that_was_given_up(&mut world), runs);
    }
}

#[test]
fn nothing_is_refreshed_while_all_pods_are_pending() {
    for runs in [false, true] {
        let exporter = Who::Ours(usual(), PATIENCE).exporter(Informer::Dedicated);
        let mut world = World::new(Settings::default(), 7, exporter);
        if runs {
            residents(&mut world, false);
            go_on(&mut world, 20);
        }
        unpullable(&mut world);
        go_on(&mut world, 5);
        let flushes = world.plugin.flushes;
        // Seven fit into a zone, but one CPU is assumed to be gone from both.
        let pod = create(&mut world, "pod", 7);
        go_on(&mut world, 900);
        assert_eq!(world.plugin.flushes > flushes, runs);
        assert_eq!(phase(&world, pod) == Some(Phase::Running), runs);
    }
}

/// Publishes that the node is free and whatever the plugin expects, at any time.
struct Liar;

impl Exporter for Liar {
    fn hear(&mut self, world: &mut World, signal: Signal) {
        if matches!(signal, Signal::Started | Signal::Timer(_)) {
            let expected = world.plugin.expected(&world.pods);
            let object = super::cluster::Object {
                available: world.settings.zones.clone(),
                policy: true,
                print: expected.map(|expected| expected.all),
                counter: world.now,
                ..Default::default()
            };
            world.write(object);
            world.wake_at(world.now + 100 * MS, 0);
        }
    }
}

#[test]
fn a_fingerprint_that_comes_true_too_early_lets_pods_collide() {
    let mut world = World::new(Settings::default(), 7, Box::new(Liar));
    residents(&mut world, false);
    go_on(&mut world, 5);
    // Each fits alone; the third does not fit with two others, and the node has enough in total.
    let pods = ["a", "b", "c"].map(|name| create(&mut world, name, 4));
    go_on(&mut world, 120);
    let failed = pods.iter().filter(|pod| phase(&world, **pod) == Some(Phase::Failed)).count();
    assert_eq!(failed, 1);
    assert_eq!(world.figures.refused_for(Cause::Late), 1);
}

#[test]
fn a_pod_is_refused_without_the_plugin() {
    let mut world = world(Who::Nobody, Settings { plugin: false, ..Settings::default() });
    let pods = ["a", "b", "c"].map(|name| create(&mut world, name, 4));
    go_on(&mut world, 20);
    assert_eq!(pods.iter().filter(|pod| phase(&world, **pod) == Some(Phase::Failed)).count(), 1);
}

#[test]
fn a_burst_is_placed_as_far_as_it_fits() {
    for (nudges, soon) in [(usual(), true), (QUIET, false)] {
        let mut world = world(Who::Ours(nudges, PATIENCE), Settings::default());
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
    let mut world = world(Who::Ours(usual(), PATIENCE), Settings::default());
    let stranger = Pod::new("stranger".into(), Request::BEST_EFFORT, world.now);
    world.create_bound(stranger);
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
fn a_run_is_repeated_by_its_seed() {
    let walk =
        Walk { steps: 300, informer: Informer::Dedicated, patience: PATIENCE, foreign: true, faults: true };
    let report = |seed| {
        let report = walk::run(&walk, seed, Who::Ours(usual(), PATIENCE).exporter(walk.informer));
        (report.figures.events, report.placed, report.figures.writes, report.time)
    };
    assert_eq!(report(3), report(3));
    assert_ne!(report(3), report(4));
}

/// Somebody's seed, or one of our own.
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
        let walk = Walk { steps: 250, informer, patience: PATIENCE, foreign: number > 3, faults: number > 1 };
        let seed = seed.wrapping_add(number);
        let report = walk::run(&walk, seed, Who::Ours(usual(), PATIENCE).exporter(informer));
        assert!(report.placed > 0);
        assert_eq!((report.refused_for(Cause::Late), report.refused_for(Cause::Unknown)), (0, 0), "{seed}");
        assert!(!report.frozen, "{seed}");
    }
}

#[test]
fn the_walk_notices_what_is_wrong() {
    let mut bad = [0; 2];
    for seed in 0..8 {
        for (flaw, bad) in [Flaw::NoHold, Flaw::StaleZones].into_iter().zip(&mut bad) {
            let walk = Walk {
                steps: 400,
                informer: Informer::Dedicated,
                patience: PATIENCE,
                foreign: false,
                faults: false,
            };
            let report = walk::run(&walk, seed, Who::Broken(flaw).exporter(walk.informer));
            *bad += report.figures.forgotten_late;
        }
    }
    assert!(bad.iter().all(|bad| *bad > 0), "{bad:?}");
}

#[test]
fn slow_hands_are_drawn_too() {
    let walk = Walk { steps: 1, informer: Informer::Shared, patience: 0, foreign: false, faults: false };
    let mut dice = super::chance::Dice::new(1);
    let drawn: Vec<Span> = (0..50).map(|_| walk::settings(&walk, &mut dice).delays.watch[2]).collect();
    assert!(drawn.iter().any(|span| span.1 > 400 * MS) && drawn.iter().any(|span| span.1 < 10 * MS));
}
