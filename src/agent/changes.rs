//! What changed between two accounts, in words.

use crate::topology::{Amounts, Topology, Zone};

/// `node-1: cpu 6 -> 4 free`, one line per zone that changed; one summary line for a first account.
pub(super) fn between(before: Option<&Topology>, now: &Topology) -> Vec<String> {
    let Some(before) = before else {
        return vec![format!("first account: {} zones", now.zones.len())];
    };
    let mut lines: Vec<String> = now.zones.iter().filter_map(|zone| zone_line(before, zone)).collect();
    for gone in before.zones.iter().filter(|old| now.zones.iter().all(|zone| zone.id != old.id)) {
        lines.push(format!("node-{}: gone", gone.id));
    }
    if before.attributes != now.attributes {
        let words: Vec<String> =
            now.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.push(format!("attributes: {}", words.join(" ")));
    }
    lines
}

fn zone_line(before: &Topology, zone: &Zone) -> Option<String> {
    let Some(old) = before.zones.iter().find(|old| old.id == zone.id) else {
        return Some(format!("node-{}: new", zone.id));
    };
    let mut words: Vec<String> = zone
        .resources
        .iter()
        .filter_map(|(name, now)| resource_words(name, old.resources.get(name).copied(), *now))
        .collect();
    words.extend(
        old.resources
            .keys()
            .filter(|name| !zone.resources.contains_key(*name))
            .map(|name| format!("{name} gone")),
    );
    if old.costs != zone.costs {
        words.push("costs changed".to_owned());
    }
    (!words.is_empty()).then(|| format!("node-{}: {}", zone.id, words.join(", ")))
}

fn resource_words(name: &str, old: Option<Amounts>, now: Amounts) -> Option<String> {
    let Some(old) = old else { return Some(format!("{name} new, {} free", now.available)) };
    if old == now {
        return None;
    }
    let mut text = format!("{name} {} -> {} free", old.available, now.available);
    if old.allocatable != now.allocatable {
        text.push_str(&format!(" of {} -> {}", old.allocatable, now.allocatable));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Listed<'a> = (u16, &'a [(&'a str, u64, u64)]);

    fn topology(zones: &[Listed<'_>]) -> Topology {
        let amounts = |allocatable, available| Amounts { capacity: allocatable, allocatable, available };
        let zone = |(id, resources): &Listed<'_>| Zone {
            id: *id,
            resources: resources.iter().map(|(name, a, b)| ((*name).to_owned(), amounts(*a, *b))).collect(),
            ..Zone::default()
        };
        Topology { zones: zones.iter().map(zone).collect(), ..Topology::default() }
    }

    #[test]
    fn each_zone_that_changed_has_its_line() {
        let before = topology(&[(0, &[("cpu", 8, 6), ("memory", 9, 9)]), (1, &[("cpu", 8, 8)])]);
        let mut now = topology(&[(0, &[("cpu", 8, 4), ("memory", 9, 9)]), (2, &[("cpu", 8, 8)])]);
        now.attributes.push(("cpuManagerPolicy".into(), "static".into()));
        assert_eq!(
            between(Some(&before), &now),
            ["node-0: cpu 6 -> 4 free", "node-2: new", "node-1: gone", "attributes: cpuManagerPolicy=static"]
        );
        let resized = topology(&[(0, &[("cpu", 7, 5), ("nic", 1, 1)]), (1, &[("cpu", 8, 8)])]);
        assert_eq!(
            between(Some(&before), &resized),
            ["node-0: cpu 6 -> 5 free of 8 -> 7, nic new, 1 free, memory gone"]
        );
        assert_eq!(between(Some(&now), &now), Vec::<String>::new());
        assert_eq!(between(None, &now), ["first account: 2 zones"]);
    }
}
