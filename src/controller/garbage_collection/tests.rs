use super::*;

const SECOND: Duration = Duration::from_secs(1);
const RULES: Rules =
    Rules { interval: Duration::from_secs(600), grace: Duration::from_secs(60), max_percent: 20 };

/// Returns a pass over this many objects with a Node, and these without.
fn pass(with: usize, without: &[String]) -> Pass {
    let mut pass = Pass::default();
    (0..with).for_each(|n| pass.add(NrtMeta::ours(&format!("with-{n}")), true));
    without.iter().for_each(|name| pass.add(NrtMeta::ours(name), false));
    pass
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("without-{n}")).collect()
}

fn deleted(decision: Decision) -> Vec<String> {
    match decision {
        Decision::Delete(metas) => metas.into_iter().map(|meta| meta.name).collect(),
        Decision::HoldBack(doubt) => panic!("{doubt}"),
    }
}

fn doubt(decision: Decision) -> Doubt {
    match decision {
        Decision::HoldBack(doubt) => doubt,
        Decision::Delete(metas) => panic!("{metas:?}"),
    }
}

#[test]
fn an_orphan_is_deleted_after_the_grace_period() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    assert_eq!(garbage.next_pass(start), start);
    let two = names(2);
    assert_eq!(deleted(garbage.conclude(pass(98, &two), 98, 98, start)), Vec::<String>::new());
    assert_eq!((garbage.orphans(), garbage.next_pass(start)), (2, start + 60 * SECOND));
    let later = start + 60 * SECOND;
    assert_eq!(deleted(garbage.conclude(pass(98, &two), 98, 98, later)), two);
    two.iter().for_each(|name| garbage.object_deleted(name, later));
    assert_eq!((garbage.orphans(), garbage.next_pass(later)), (0, later + RULES.interval));
}

#[test]
fn the_grace_period_starts_when_the_node_is_deleted() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    garbage.conclude(pass(100, &[]), 100, 100, start);
    garbage.node_deleted("without-0".into(), start + 20 * SECOND);
    garbage.node_deleted("without-1".into(), start + 30 * SECOND);
    garbage.node_deleted("without-0".into(), start + 50 * SECOND);
    assert_eq!(garbage.next_pass(start), start + 80 * SECOND);
    garbage.node_exists("without-1");
    let (now, both) = (start + 80 * SECOND, names(2));
    // The other one's Node was added and deleted again between passes.
    assert_eq!(deleted(garbage.conclude(pass(98, &both), 98, 98, now)), ["without-0"]);
}

/// Returns a pass over these names, of which these have an object.
fn pass_over(names: Vec<Box<str>>, objects: &[&str]) -> Pass {
    let mut pass = Pass { names: Some(names), ..Pass::default() };
    objects.iter().for_each(|name| pass.add(NrtMeta::ours(name), false));
    pass
}

#[test]
fn objects_of_deleted_nodes_are_read_one_by_one_between_lists() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    assert_eq!(garbage.objects_to_read(100, start), None, "the start");
    garbage.conclude(pass(100, &[]), 100, 100, start);
    garbage.node_deleted("a".into(), start);
    garbage.node_deleted("b".into(), start);
    garbage.node_deleted("c".into(), start + 30 * SECOND);
    let now = start + 60 * SECOND;
    let due = garbage.objects_to_read(97, now).unwrap();
    assert_eq!(due, ["a".into(), "b".into()]);
    assert_eq!(garbage.objects_to_read(0, now), None, "without Nodes");
    // The other one's object went with its Node.
    assert_eq!(deleted(garbage.conclude(pass_over(due, &["b"]), 97, 97, now)), ["b"]);
    assert_eq!(garbage.orphans(), 1);
    garbage.object_deleted("b", now);
    assert_eq!((garbage.orphans(), garbage.next_pass(now)), (0, start + 90 * SECOND), "the third");
    let now = start + 90 * SECOND;
    let due = garbage.objects_to_read(97, now).unwrap();
    assert_eq!(due, ["c".into()]);
    assert!(deleted(garbage.conclude(pass_over(due, &[]), 97, 97, now)).is_empty());
    assert_eq!(garbage.next_pass(now), start + RULES.interval, "since all were listed");
    assert_eq!(garbage.objects_to_read(97, start + RULES.interval), None);
    garbage.retry_soon();
    assert_eq!(garbage.objects_to_read(97, now), None, "after an incomplete pass");
}

#[test]
fn all_objects_are_listed_if_many_nodes_were_deleted() {
    let start = Instant::now();
    let after_deletions = |nodes: usize, count: usize| {
        let mut garbage = GarbageCollector::new(RULES);
        garbage.conclude(pass(nodes, &[]), nodes, nodes as u64, start);
        names(count).into_iter().for_each(|name| garbage.node_deleted(name.into(), start + SECOND));
        garbage
    };
    let (early, late) = (start + 2 * SECOND, start + 61 * SECOND);
    assert_eq!(after_deletions(100, 20).objects_to_read(80, late).map(|names| names.len()), Some(20));
    assert_eq!(after_deletions(100, 21).objects_to_read(79, early), None, "none is due, but all count");
    let most = after_deletions(1000, MAX_READ).objects_to_read(950, late);
    assert_eq!(most.map(|names| names.len()), Some(MAX_READ));
    assert_eq!(after_deletions(1000, MAX_READ + 1).objects_to_read(949, late), None);
    let mut garbage = after_deletions(100, 11);
    (0..10).for_each(|n| garbage.object_deleted(&format!("deleted-{n}"), late));
    assert_eq!(garbage.objects_to_read(79, late), None, "recent deletions count");
}

#[test]
fn a_node_that_is_created_again_keeps_its_object() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    garbage.conclude(pass(99, &names(1)), 99, 99, start);
    garbage.node_exists("without-0");
    let later = start + 61 * SECOND;
    assert_eq!(garbage.next_pass(later), start + RULES.interval);
    assert!(deleted(garbage.conclude(pass(100, &[]), 100, 100, later)).is_empty());
    // It is deleted again: a new grace period starts.
    let again = later + SECOND;
    assert!(deleted(garbage.conclude(pass(99, &names(1)), 99, 99, again)).is_empty());
}

#[test]
fn too_many_orphans_are_held_back_until_there_are_fewer() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    let half = names(50);
    let reason = doubt(garbage.conclude(pass(50, &half), 50, 50, start));
    assert_eq!(reason, Doubt::TooMany { orphans: 50, deleted: 0, objects: 100, max_percent: 20 });
    assert!(reason.to_string().starts_with("50 of 100 objects have no Node, more than the 20 %"));
    let later = start + 120 * SECOND;
    doubt(garbage.conclude(pass(50, &half), 50, 50, later));
    assert_eq!(deleted(garbage.conclude(pass(80, &half[..20]), 80, 80, later + SECOND)).len(), 20);
    let mut garbage = GarbageCollector::new(Rules { max_percent: 100, ..RULES });
    garbage.conclude(pass(1, &half), 1, 1, start);
    assert_eq!(deleted(garbage.conclude(pass(1, &half), 1, 1, later)).len(), 50, "100 % is no limit");
}

#[test]
fn a_few_may_always_be_deleted() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(Rules { max_percent: 0, ..RULES });
    garbage.conclude(pass(1, &names(ALWAYS_ALLOWED)), 1, 1, start);
    let later = start + 60 * SECOND;
    let few = deleted(garbage.conclude(pass(1, &names(ALWAYS_ALLOWED)), 1, 1, later));
    assert_eq!(few.len(), ALWAYS_ALLOWED);
    doubt(garbage.conclude(pass(1, &names(ALWAYS_ALLOWED + 1)), 1, 1, later));
}

#[test]
fn recent_deletions_count_towards_the_limit() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    let fifteen = names(15);
    garbage.conclude(pass(85, &fifteen), 85, 85, start);
    let now = start + 60 * SECOND;
    let gone = deleted(garbage.conclude(pass(85, &fifteen), 85, 85, now));
    gone.iter().for_each(|name| garbage.object_deleted(name, now));
    let reason = doubt(garbage.conclude(pass(79, &names(6)), 79, 79, now + SECOND));
    assert_eq!(reason, Doubt::TooMany { orphans: 6, deleted: 15, objects: 85, max_percent: 20 });
    assert!(reason.to_string().contains("have no Node and 15 were deleted recently, more"), "{reason}");
    let mut garbage = garbage.next_term();
    assert_eq!((garbage.orphans(), garbage.next_pass(now)), (0, now), "nothing is known");
    let reason = doubt(garbage.conclude(pass(79, &names(6)), 79, 79, now + SECOND));
    assert!(matches!(reason, Doubt::TooMany { deleted: 15, .. }), "also in a new term");
    let later = now + RULES.interval;
    assert_eq!(deleted(garbage.conclude(pass(79, &names(6)), 79, 79, later)).len(), 6);
}

#[test]
fn nothing_is_deleted_if_the_nodes_are_empty_or_counted_differently() {
    let now = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    assert_eq!(doubt(garbage.conclude(pass(0, &names(3)), 0, 0, now)), Doubt::NoNodes { objects: 3 });
    let reason = doubt(garbage.conclude(pass(100, &names(3)), 100, 200, now));
    assert_eq!(reason, Doubt::CountsDiffer { cached: 100, counted: 200 });
    assert!(
        deleted(garbage.conclude(pass(100, &names(3)), 100, 105, now)).is_empty(),
        "some were added since"
    );
    assert!(
        deleted(garbage.conclude(pass(0, &[]), 0, 0, now)).is_empty(),
        "without objects there is no doubt"
    );
}

#[test]
fn passes_are_spaced_and_failed_ones_retried_later() {
    let start = Instant::now();
    let rules = Rules { grace: 90 * SECOND, ..RULES };
    let mut garbage = GarbageCollector::new(rules);
    garbage.pass_failed(start);
    assert_eq!(garbage.next_pass(start), start + 60 * SECOND, "with or without deleted Nodes");
    garbage.node_deleted("a".into(), start);
    assert_eq!(garbage.next_pass(start), start + 60 * SECOND);
    let mut garbage = GarbageCollector::new(rules);
    garbage.conclude(pass(100, &[]), 100, 100, start + 88 * SECOND);
    garbage.node_deleted("a".into(), start);
    assert_eq!(garbage.next_pass(start), start + 98 * SECOND, "passes are spaced");
}

/// Returns another writer's object.
fn other(name: &str) -> NrtMeta {
    NrtMeta::of_other(name, "rack")
}

#[test]
fn an_object_that_describes_no_node_is_kept_until_it_changes() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    let pass_of = |version: &str| {
        let mut pass = pass(9, &[]);
        pass.add(NrtMeta { version: version.into(), ..other("rack") }, false);
        pass
    };
    let names = |metas: Vec<NrtMeta>| metas.into_iter().map(|meta| meta.name).collect::<Vec<_>>();
    assert_eq!(names(garbage.unclassified(&pass_of("1"))), ["rack"]);
    garbage.classify(&other("rack"), false);
    assert!(garbage.unclassified(&pass_of("1")).is_empty());
    garbage.conclude(pass_of("1"), 9, 9, start);
    assert_eq!((garbage.orphans(), garbage.next_pass(start)), (0, start + RULES.interval));
    assert_eq!(names(garbage.unclassified(&pass_of("2"))), ["rack"], "it changed");
    garbage.classify(&NrtMeta { version: "2".into(), ..other("rack") }, true);
    garbage.conclude(pass_of("2"), 9, 9, start);
    assert!(garbage.unclassified(&pass_of("2")).is_empty(), "it was classified");
    assert_eq!(deleted(garbage.conclude(pass_of("2"), 9, 9, start + 60 * SECOND)), ["rack"]);
    assert!(garbage.unclassified(&pass(9, &names(vec![NrtMeta::ours("a")]))).is_empty(), "we wrote it");
}

#[test]
fn objects_that_describe_no_node_do_not_count() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    let all = || {
        let mut pass = pass(50, &["without".to_owned()]);
        (0..40).for_each(|n| pass.add(other(&format!("rack-{n}")), false));
        pass
    };
    let unclassified = garbage.unclassified(&all());
    assert_eq!(unclassified.len(), 40);
    unclassified.iter().for_each(|meta| garbage.classify(meta, false));
    garbage.conclude(all(), 50, 50, start);
    assert_eq!(deleted(garbage.conclude(all(), 50, 50, start + 60 * SECOND)), ["without"]);
}

#[test]
fn failed_deletions_come_last() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    let three = names(3);
    garbage.conclude(pass(98, &three), 98, 98, start);
    assert_eq!(deleted(garbage.conclude(pass(98, &three), 98, 98, start + 60 * SECOND)), three);
    garbage.deletion_failed("without-0");
    garbage.deletion_failed("without-0");
    garbage.deletion_failed("without-1");
    let later = start + 120 * SECOND;
    assert_eq!(garbage.next_pass(later), later, "a minute after the last pass");
    let order = ["without-2", "without-1", "without-0"];
    assert_eq!(deleted(garbage.conclude(pass(98, &three), 98, 98, later)), order);
    garbage.conclude(pass(98, &[]), 98, 98, later);
    assert!(garbage.failures.is_empty(), "they are gone");
}

#[test]
fn a_listed_node_is_not_deleted() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    garbage.conclude(pass(98, &names(1)), 98, 98, start);
    garbage.node_deleted("without-1".into(), start);
    garbage.nodes_listed(|name| name.starts_with("without"));
    let later = start + 61 * SECOND;
    assert_eq!((garbage.orphans(), garbage.next_pass(later)), (0, start + RULES.interval));
    assert!(deleted(garbage.conclude(pass(98, &names(2)), 98, 98, later)).is_empty(), "a new grace period");
}

#[test]
fn deleted_nodes_are_pruned_while_passes_fail() {
    let start = Instant::now();
    let mut garbage = GarbageCollector::new(RULES);
    garbage.node_deleted("a".into(), start);
    garbage.pass_failed(start + RULES.interval);
    assert_eq!(garbage.deleted_nodes.len(), 1);
    garbage.pass_failed(start + RULES.interval * 2);
    assert!(garbage.deleted_nodes.is_empty());
}

#[test]
fn kept_and_deleted_objects_are_no_garbage() {
    let mut pass = Pass::default();
    pass.add(NrtMeta { is_kept: true, ..NrtMeta::ours("a") }, false);
    pass.add(NrtMeta { is_deleted: true, ..NrtMeta::ours("b") }, false);
    assert!(pass.orphans.is_empty() && pass.objects == 2);
}
