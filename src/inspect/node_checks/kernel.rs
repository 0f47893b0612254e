//! Settings and limits of the kernel.

use super::facts::NodeFacts;
use crate::inspect::{Check, Finding, Mend, Severity};

static CPUSET_MISSING: Check = Check {
    name: "CpusetMissing",
    severity: Severity::Error,
    looks_for: "cgroup v2 has no cpuset controller",
    why: "No container can be kept on its CPUs and memory, and the kubelet does not start.",
};
static NUMA_BALANCING: Check = Check {
    name: "NumaBalancing",
    severity: Severity::Warning,
    looks_for: "the kernel balances memory over NUMA nodes, although all pods with exclusive CPUs and memory are on one",
    why: "It interrupts these pods to see which memory they use, and can move none of it.",
};
static INOTIFY_EXHAUSTED: Check = Check {
    name: "InotifyExhausted",
    severity: Severity::Warning,
    looks_for: "no inotify instance can be created",
    why: "The agent polls instead of being told of changes, so zones are published late.",
};

pub(super) const CHECKS: &[&Check] = &[&CPUSET_MISSING, &NUMA_BALANCING, &INOTIFY_EXHAUSTED];

pub(super) fn check(facts: &NodeFacts) -> Vec<Finding> {
    [cpuset(facts), balancing(facts), inotify(facts)].into_iter().flatten().collect()
}

fn cpuset(facts: &NodeFacts) -> Option<Finding> {
    let controllers = facts.details.cgroup_controllers.as_ref()?;
    let has_cpuset = controllers.split_whitespace().any(|controller| controller == "cpuset");
    let what = format!("the controllers of cgroup v2 are `{}`, without cpuset", controllers.trim());
    let mend = "Use a kernel with CONFIG_CPUSETS, and do not mount cpuset as a controller of cgroup v1.";
    (!has_cpuset).then(|| facts.finding(&CPUSET_MISSING, what, Mend::Do(mend.to_owned())))
}

fn balancing(facts: &NodeFacts) -> Option<Finding> {
    let (machine, config) = facts.machine_and_config()?;
    let is_pinned = config.cpu_manager_policy == "static"
        && config.memory_manager_policy == "Static"
        && config.topology_manager_policy == "single-numa-node";
    if !facts.details.numa_balancing || !is_pinned || machine.nodes.len() < 2 {
        return None;
    }
    let mend = Mend::Run(format!("echo 0 > {}", facts.paths.word("proc/sys/kernel/numa_balancing")));
    Some(facts.finding(&NUMA_BALANCING, "kernel.numa_balancing is on", mend))
}

fn inotify(facts: &NodeFacts) -> Option<Finding> {
    let error = facts.inotify_error.as_ref()?;
    let mend = Mend::Run("sysctl -w fs.inotify.max_user_instances=8192".to_owned());
    Some(facts.finding(&INOTIFY_EXHAUSTED, format!("no inotify instance can be created: {error}"), mend))
}
