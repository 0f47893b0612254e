use numacast_core::nrt::{self, ResourceInfo};
use numacast_core::quantity::Quantity;

use super::*;

const GIB: u64 = 1 << 30;

fn zone(id: u16) -> Zone {
    let resource = |name: &str, allocatable: u64, available: u64| ResourceInfo {
        name: name.into(),
        capacity: Quantity::whole(allocatable + 1),
        allocatable: Quantity::whole(allocatable),
        available: Quantity::whole(available),
    };
    Zone::from(&nrt::Zone {
        name: nrt::zone_name(id),
        resources: Some(vec![
            resource("cpu", 6, 6 - u64::from(id % 7)),
            resource("example.com/gpu", 2, 2),
            resource("example.com/nic", 1, u64::from(id % 2)),
            resource("hugepages-1Gi", 4 * GIB, 0),
            resource("hugepages-2Mi", 2 * GIB, 3 * GIB / 2),
            resource("memory", 17 * GIB, 17 * GIB - 1),
        ]),
        ..nrt::Zone::default()
    })
}

fn view(zones: u16) -> View {
    let event = |text: &str, took| Event { text: text.into(), took };
    View {
        node: "sim-node".into(),
        seed: 42,
        command: "kubectl -s http://127.0.0.1:34567 get node-res-topo -o yaml -w".into(),
        zones: (0..zones).map(zone).collect(),
        pods: [("database-1", "0"), ("packets-2", "1"), ("cache-3", "0-1")]
            .map(|(name, zones)| (name.to_owned(), zones.to_owned()))
            .into(),
        events: [
            event("database-1 took 4 CPUs and 2 GiB on node-0", Some(Duration::from_micros(4210))),
            event("web-2 runs in the shared pool, without exclusive resources", None),
            event("cache-7 ended", Some(Duration::from_millis(1251))),
        ]
        .into(),
        writes: 3,
        changes: 3,
        allocation: Summary { count: 2, p50: Duration::from_micros(4210), p99: Duration::from_millis(251) },
        release: Summary { count: 1, p50: Duration::from_millis(255), p99: Duration::from_millis(255) },
        release_lag: Duration::from_millis(250),
        matches: true,
        error: None,
    }
}

#[test]
fn two_zones_in_a_usual_window() {
    insta::assert_snapshot!(render(&view(2), 80, 24, false));
}

#[test]
fn two_zones_with_all_events() {
    insta::assert_snapshot!(render(&view(2), 120, 40, false));
}

#[test]
fn eight_zones_in_a_usual_window() {
    insta::assert_snapshot!(render(&view(8), 80, 24, false));
}

#[test]
fn a_narrow_window() {
    insta::assert_snapshot!(render(&view(2), 34, 40, false));
}

#[test]
fn colours() {
    let coloured = render(&view(2), 80, 24, true);
    insta::assert_snapshot!(coloured.replace('\x1b', "^"));
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        plain.push_str(before);
        rest = after.split_once('m').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    let trimmed: Vec<&str> = plain.lines().map(str::trim_end).collect();
    assert_eq!(trimmed.join("\n"), render(&view(2), 80, 24, false), "colours change nothing else");
}

#[test]
fn the_state_of_the_object_is_shown() {
    let waiting = View { node: "sim-node".into(), ..View::default() };
    let page = render(&waiting, 80, 24, false);
    assert!(page.contains("Waiting for the agent's first object."), "{page}");
    let failing = View { error: Some("the kubelet is away".into()), ..view(2) };
    assert!(render(&failing, 80, 24, false).contains("\nthe kubelet is away  3 writes"));
    let late = View { matches: false, ..view(2) };
    assert!(render(&late, 80, 24, false).contains("The object is being updated."));
}

#[test]
fn every_page_fits_its_window() {
    for zones in [0, 1, 2, 5, 8, 64] {
        for width in [0, 1, 2, 7, 20, 33, 44, 79, 80, 81, 132, 300] {
            for height in [0, 1, 2, 5, 10, 23, 24, 25, 60, 1000] {
                for colour in [false, true] {
                    let page = render(&view(zones), width, height, colour);
                    assert!(page.lines().count() <= height, "{zones} zones, {width}x{height}");
                    if !colour {
                        let widest = page.lines().map(|line| line.chars().count()).max().unwrap_or(0);
                        assert!(widest <= width, "{zones} zones, {width}x{height}: {widest}");
                    }
                }
            }
        }
    }
}

#[test]
fn requests_are_described() {
    let pod = PodSpec::guaranteed("x", 1, 5 * GIB / 2)
        .hugepages("hugepages-2Mi", GIB / 4)
        .devices("example.com/nic", 1);
    assert_eq!(request(&pod), "1 CPU, 2.5 GiB, 0.3 GiB of 2Mi pages and 1 nic");
    assert_eq!(request(&PodSpec { containers: vec![], ..pod }), "nothing");
}
