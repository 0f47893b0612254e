//! The requests of a pod's containers.

use std::collections::BTreeMap;

/// The requests of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: Box<str>,
    /// When it runs.
    pub kind: ContainerKind,
    /// CPU in millicores. A multiple of 1000 where the kubelet allocates whole CPUs. Like all amounts here it
    /// is computed as Kubernetes does: rounded up, and nearly always 0 if it does not fit in 64 bits.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// Other requested resources, sorted by name: `hugepages-*` in bytes, without zeros; domain-qualified
    /// (extended) resources as counts, which may be zero. `ephemeral-storage` and `storage` are left out.
    pub others: Box<[(Box<str>, u64)]>,
    /// Whether it requests CPU and memory, and as much of each as its limits.
    pub guaranteed: bool,
}

/// When a container runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerKind {
    /// As long as its pod.
    #[default]
    App,
    /// A restartable init container: starts before the app containers and keeps running.
    Sidecar,
    /// An init container: runs to completion before the app containers start.
    Init,
}

impl Container {
    /// Maximum number of containers kept per pod, and of other resources per container. A pod of 1.5 MB has
    /// room for some twenty thousand of either, and each takes more memory here than in the message.
    pub(crate) const MAX_PER_POD: usize = 256;
    const MAX_OTHERS: usize = 64;

    /// Returns the entries of [`Container::others`] with a nonzero request.
    pub fn requested(&self) -> impl Iterator<Item = (&str, u64)> {
        self.others.iter().map(|(name, amount)| (&**name, *amount)).filter(|(_, amount)| *amount > 0)
    }

    /// Bounds the number of containers of one pod: the surplus is merged into the last one, with summed
    /// requests.
    pub(crate) fn bounded(containers: impl Iterator<Item = Self>) -> Box<[Self]> {
        let mut kept: Vec<Self> = Vec::new();
        for mut container in containers {
            container.others = Self::bounded_others(container.others.into());
            match kept.get_mut(Self::MAX_PER_POD - 1) {
                Some(last) => last.add(container),
                None => kept.push(container),
            }
        }
        kept.into()
    }

    /// Adds the requests of another container. The kind that runs longer wins.
    fn add(&mut self, more: Self) {
        if self.kind == ContainerKind::Init || more.kind == ContainerKind::App {
            self.kind = more.kind;
        }
        self.cpu_milli = self.cpu_milli.saturating_add(more.cpu_milli);
        self.memory = self.memory.saturating_add(more.memory);
        if !more.others.is_empty() {
            let mut others: BTreeMap<Box<str>, u64> = std::mem::take(&mut self.others).into_iter().collect();
            for (name, amount) in more.others {
                let sum = others.entry(name).or_default();
                *sum = sum.saturating_add(amount);
            }
            self.others = Self::bounded_others(others.into_iter().collect());
        }
    }

    /// Truncates sorted resources to the maximum, dropping those with a zero request first.
    fn bounded_others(mut others: Vec<(Box<str>, u64)>) -> Box<[(Box<str>, u64)]> {
        if others.len() > Self::MAX_OTHERS {
            others.sort_by_key(|(_, amount)| *amount == 0);
            others.truncate(Self::MAX_OTHERS);
            others.sort();
        }
        others.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(kind: ContainerKind, others: &[(&str, u64)]) -> Container {
        let others = others.iter().map(|(name, amount)| (Box::from(*name), *amount)).collect();
        Container { kind, cpu_milli: 1000, others, ..Container::default() }
    }

    #[test]
    fn resources_with_a_zero_request_are_dropped_first() {
        let named = |at: usize| format!("example.com/{at:03}");
        let kept = |amounts: Vec<u64>| {
            let others = amounts.into_iter().enumerate().map(|(at, amount)| (named(at).into(), amount));
            let container = Container { others: others.collect(), ..Container::default() };
            let all = Container::bounded([container].into_iter());
            all[0].others.iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        let max = Container::MAX_OTHERS;
        let first = |count| (0..count).map(named).collect::<Vec<_>>();
        assert_eq!(kept([vec![0], vec![1; max - 1]].concat()), first(max), "there is room for all");
        assert_eq!(kept([vec![0], vec![1; max]].concat()), (1..=max).map(named).collect::<Vec<_>>());
        assert_eq!(kept(vec![1; max + 9]), first(max));
    }

    #[test]
    fn surplus_containers_are_merged_into_the_last_and_the_kind_that_runs_longest() {
        use ContainerKind::{App, Init, Sidecar};
        let last = |kinds: &[ContainerKind]| {
            let before = std::iter::repeat_n(container(Init, &[]), Container::MAX_PER_POD - 1);
            let more = kinds.iter().map(|kind| container(*kind, &[("example.com/nic", 2)]));
            let all = Container::bounded(before.chain(more));
            let Container { kind, cpu_milli, others, .. } = &all[Container::MAX_PER_POD - 1];
            (all.len(), *kind, *cpu_milli, others[0].1)
        };
        let max = Container::MAX_PER_POD;
        assert_eq!(last(&[Init]), (max, Init, 1000, 2));
        assert_eq!(last(&[Init, Init]), (max, Init, 2000, 4));
        assert_eq!(last(&[Init, Sidecar, Init]), (max, Sidecar, 3000, 6));
        assert_eq!(last(&[Sidecar, App]), (max, App, 2000, 4));
        assert_eq!(last(&[App, Sidecar]), (max, App, 2000, 4));
    }

    #[test]
    fn resources_with_a_zero_request_are_dropped_first_when_containers_are_merged() {
        let named = |at: usize| format!("example.com/{at:03}");
        let max = Container::MAX_OTHERS;
        let many: Vec<String> = (1..=max).map(named).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|name| (name.as_str(), 1)).collect();
        let before = std::iter::repeat_n(Container::default(), Container::MAX_PER_POD - 1);
        let more = [container(ContainerKind::App, &[(&named(0), 0)]), container(ContainerKind::App, &many)];
        let all = Container::bounded(before.chain(more));
        let others = &all[Container::MAX_PER_POD - 1].others;
        assert_eq!((others.len(), others[0].1), (max, 1));
    }
}
