//! How the List and the managers' checkpoints are joined if several matches are possible.

use super::*;

fn quarters(name: &str, count: u64, nodes: &[&str]) -> ContainerUsage {
    container(name, "", nodes.iter().map(|node| block("memory", count * GIB / 4, node)).collect())
}

#[test]
fn cpus_that_the_books_give_a_container_before_the_list_shows_them_are_in_use() {
    let mut listed = pod("a", container("main", "1", vec![]));
    listed.containers.push(container("side", "", vec![]));
    let written = [container("main", "1", vec![]), container("side", "2-3", vec![])];
    let mut case = with_books(vec![listed], books(&[("u", &written)]));
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 1]));
    case.rules.exclude.outside_namespace = Some("other".into());
    assert_eq!(case.of("cpu")[0], (0, [4, 4, 4]), "an excluded pod's are not");
}

#[test]
fn a_container_is_listed_only_if_every_pod_that_may_have_the_entry_lists_it() {
    let plain = pod("a", quarters("main", 1, &["0"]));
    let mut other = pod("b", quarters("main", 1, &["0"]));
    other.containers.push(container("start", "", vec![]));
    let written = [quarters("main", 1, &["0"]), quarters("start", 4, &["0"])];
    let books = books(&[("u", &written), ("v", &[quarters("main", 1, &["0"])])]);
    for pods in [vec![plain.clone(), other.clone()], vec![other.clone(), plain]] {
        assert_eq!(with_books(pods, books.clone()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 5 * GIB / 2]));
    }
    assert_eq!(with_books(vec![other], books).of("memory")[0], (0, [8 * GIB, 4 * GIB, 15 * GIB / 4]));
}

#[test]
fn an_entry_is_chosen_once_even_if_its_container_holds_the_same_on_two_nodes() {
    let main = || quarters("main", 1, &["0", "1"]);
    let books = books(&[
        ("u", &[main(), quarters("start", 4, &["0"])]),
        ("v", &[main(), quarters("start", 2, &["0"])]),
    ]);
    let pods = vec![pod("a", main()), pod("b", main())];
    assert_eq!(links(pods.iter(), &books).alive.into_keys().collect::<Vec<_>>(), ["u", "v"]);
    assert_eq!(with_books(pods, books).of("memory")[0], (0, [8 * GIB, 4 * GIB, 2 * GIB]));
}

#[test]
fn pods_that_hold_different_memory_never_share_an_entry() {
    // One pod matches both entries, the other only the first, which has the most hidden memory.
    let both = |name| pod(name, quarters("main", 1, &["0"]));
    let mut first = both("b");
    first.containers.push(quarters("side", 1, &["1"]));
    let entry = [quarters("main", 1, &["0"]), quarters("side", 1, &["1"]), quarters("start", 4, &["0"])];
    let books = books(&[("u", &entry), ("v", &[quarters("main", 1, &["0"]), quarters("start", 2, &["0"])])]);
    let pods = [both("a"), first];
    assert_eq!(links(pods.iter(), &books).alive.into_keys().collect::<Vec<_>>(), ["u", "v"]);
    let links = links(pods[1..].iter(), &books);
    assert_eq!(links.alive, [("u", ["main", "side"].into())].into());
}

#[test]
fn a_pod_that_was_known_keeps_its_uid_and_one_that_left_leaves_no_trace() {
    // Replicas: in the List they differ only in their names.
    let replica = |name| pod(name, quarters("main", 1, &["0"]));
    let entry = || [quarters("main", 1, &["0"]), quarters("start", 2, &["0"])];
    let mut books = books(&[("u", &entry()), ("v", &entry()), ("w", &entry())]);
    let free = |case: &Case| case.of("memory")[0].1[2] * 4 / GIB;
    let both = [replica("a"), replica("b")];
    assert!(links(both.iter(), &books).certain.is_empty(), "three entries for two pods");
    let name = |uid: &str, name: &str| (uid.to_owned(), ("ns".to_owned(), name.to_owned()));
    books.names = [name("u", "a"), name("w", "c")].into();
    let certain = links(both.iter(), &books).certain;
    assert_eq!(
        certain.into_iter().map(|(uid, pod)| (uid, pod.name.as_str())).collect::<Vec<_>>(),
        [("u", "a"), ("v", "b")]
    );
    books.names = [name("u", "a"), name("v", "b"), name("w", "c")].into();
    assert_eq!(free(&with_books(both.to_vec(), books.clone())), 16 - 2 * 3, "c has left");
    assert_eq!(free(&with_books(vec![replica("b")], books.clone())), 16 - 3);
    // A new replica cannot match an entry that is known to be another pod's.
    assert_eq!(free(&with_books(vec![replica("b"), replica("d")], books.clone())), 16 - 3 - 1);
    // A pod without allocated resources may be a new pod with the name of an old one.
    assert_eq!(free(&with_books(vec![pod("a", container("main", "", vec![]))], books)), 16);
}

#[test]
fn an_entry_with_other_cpus_is_another_pods() {
    let written = |cpus| [quarters("init", 4, &["0"]), container("main", cpus, vec![])];
    let case = |cpus, names| {
        let books = ManagerState { names, ..books(&[("u", &written(cpus))]) };
        with_books(vec![pod("a", container("main", "1", vec![]))], books)
    };
    let nobody = BTreeMap::new;
    assert_eq!(case("1", nobody()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 3 * GIB]));
    assert_eq!(case("1-3", nobody()).of("memory")[0], (0, [8 * GIB, 4 * GIB, 4 * GIB]));
    assert_eq!(case("1-3", nobody()).of("cpu")[0], (0, [4, 4, 1]), "nobody was seen to leave");
    assert_eq!(case("1-3", gone("u")).of("cpu")[0], (0, [4, 4, 3]));
    assert_eq!(
        case("1", gone("u")).of("memory")[0],
        (0, [8 * GIB, 4 * GIB, 4 * GIB]),
        "the next pod got its CPUs"
    );
}

#[test]
fn a_pod_that_was_known_keeps_its_uid_whatever_it_holds() {
    let nothing = || pod("a", container("main", "", vec![]));
    let cpus = PodUsage { cpus: ids("1"), ..nothing() };
    let memory = PodUsage { memory: vec![block("memory", GIB, "0")], ..nothing() };
    let books = ManagerState {
        names: [("u".to_owned(), ("ns".to_owned(), "a".to_owned()))].into(),
        ..books(&[("u", &[quarters("init", 1, &["0"])])])
    };
    for held in [cpus, memory, pod("a", quarters("main", 1, &["0"]))] {
        assert_eq!(links([held].iter(), &books).certain.into_keys().collect::<Vec<_>>(), ["u"]);
    }
    assert!(links([nothing()].iter(), &books).certain.is_empty());
}
