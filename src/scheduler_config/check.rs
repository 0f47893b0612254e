//! What of a scheduler's configuration contradicts ours.

use serde_json::{Map, Value};

use super::file::{Cache, File, Profile};
use super::{API_VERSION, PLUGIN, SchedulerConfigError, caches};
use crate::config::{Config, Nudge};
use crate::scheduler::{FingerprintMethod, FingerprintView, Informer};

/// Recommended first and longest wait of a rejected pod, in seconds.
pub(super) const INITIAL_BACKOFF: i64 = 1;
pub(super) const MAX_BACKOFF: i64 = 2;
/// The longest resync period that `controller.nudge: auto` suits, in seconds.
const MAX_AUTO_PERIOD: u64 = 10;

/// The plugin's arguments, those of later releases included.
const ARGS: [&str; 7] = [
    "apiVersion",
    "cache",
    "cacheResyncPeriodSeconds",
    "discardReservedNodes",
    "kind",
    "preemptionMode",
    "scoringStrategy",
];
const CACHE_ARGS: [&str; 4] = ["foreignPodsDetect", "informerMode", "resyncMethod", "resyncScope"];
const STRATEGIES: [&str; 4] = ["BalancedAllocation", "LeastAllocated", "LeastNUMANodes", "MostAllocated"];

/// Returns a sentence for each setting of a KubeSchedulerConfiguration that contradicts our configuration: the
/// setting, and what it leads to.
///
/// # Errors
/// If the text is no KubeSchedulerConfiguration, or our configuration is for another scheduler.
pub fn disagreements(config: &Config, text: &str) -> Result<Vec<String>, SchedulerConfigError> {
    caches(config.consumer)?;
    let file = File::parse(text)?;
    let mut found = of_file(&file);
    let mut profiles = 0;
    for profile in file.with_plugin() {
        profiles += 1;
        let sentences = of_profile(config, profile).into_iter();
        found.extend(sentences.map(|sentence| format!("profile {}: {sentence}", profile.name())));
    }
    if profiles == 0 {
        found.push(format!("no profile enables {PLUGIN}: pods are placed without regard to zones"));
    }
    Ok(found)
}

/// Returns what concerns all profiles.
fn of_file(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    let version = file.api_version.as_deref().unwrap_or_default();
    if version != API_VERSION {
        found.push(format!(
            "apiVersion is {version:?}: the scheduler reads only {API_VERSION} and does not start"
        ));
    }
    let backoffs = [
        ("podInitialBackoffSeconds", file.pod_initial_backoff_seconds, 1, INITIAL_BACKOFF),
        ("podMaxBackoffSeconds", file.pod_max_backoff_seconds, 10, MAX_BACKOFF),
    ];
    for (key, set, default, recommended) in backoffs {
        let seconds = set.unwrap_or(default);
        if seconds > recommended {
            found.push(format!(
                "{key} is {seconds}{}: a rejected pod may wait that long although a zone has become free; set it to \
                 {recommended}",
                if set.is_none() { ", its default" } else { "" },
            ));
        }
    }
    found
}

fn of_profile(config: &Config, profile: &Profile) -> Vec<String> {
    let mut found = of_extension_points(profile);
    found.extend(of_names(profile));
    match profile.cache() {
        Cache::OverReserve(period) => found.extend(of_over_reserve(config, profile, period)),
        Cache::DiscardReserved => found.extend(of_direct(config, "discardReservedNodes is true", true)),
        Cache::Passthrough => {
            found.extend(of_direct(config, "cacheResyncPeriodSeconds is 0, the default", false));
        }
    }
    if profile.text("preemptionMode", "Disabled") == "Enabled" && !config.has_placement() {
        found.push(
            "preemptionMode is Enabled, but objects have the NUMA node of each container only with `consumer: \
             schedulerPlugins`: no pod is evicted"
                .to_owned(),
        );
    }
    found
}

fn of_extension_points(profile: &Profile) -> Vec<String> {
    let mut found = Vec::new();
    let mut missing = |point, leads_to| {
        if !profile.has(PLUGIN, point) {
            found.push(format!("{PLUGIN} is disabled in plugins.{point}: {leads_to}"));
        }
    };
    missing("filter", "pods are placed on nodes where no zone has room, and the kubelet rejects them");
    match profile.cache() {
        Cache::Passthrough => {}
        Cache::OverReserve(_) => {
            missing(
                "reserve",
                "nothing is subtracted for a pod until the next resync, so others are placed there too",
            );
        }
        Cache::DiscardReserved => {
            missing("reserve", "a node with a pod that is not bound yet is not skipped");
            missing("postBind", "a node on which a pod was placed gets no other");
        }
    }
    if !profile.sorts_pods() {
        found.push(
            "PrioritySort is disabled and no other plugin sorts pods: the scheduler does not start"
                .to_owned(),
        );
    }
    found
}

/// Returns a sentence for each argument that the plugin does not know.
fn unknown<'a>(
    of: &'a str,
    known: &'a [&str],
    args: Option<&'a Map<String, Value>>,
) -> impl Iterator<Item = String> {
    let names = args.into_iter().flat_map(Map::keys).filter(|name| !known.contains(&name.as_str()));
    names.map(move |name| format!("{of}{name} is no argument of the plugin: the scheduler does not start"))
}

/// Returns arguments and values that the plugin does not know.
fn of_names(profile: &Profile) -> Vec<String> {
    let cache = profile.arg("cache").and_then(Value::as_object);
    let mut found: Vec<String> =
        unknown("", &ARGS, profile.args()).chain(unknown("cache.", &CACHE_ARGS, cache)).collect();
    let strategy = profile.text("scoringStrategy.type", "LeastAllocated");
    if !STRATEGIES.contains(&strategy) {
        found.push(format!(
            "scoringStrategy.type is {strategy}, none of {}: the scheduler does not start",
            STRATEGIES.join(", "),
        ));
    }
    found
}

fn of_over_reserve(config: &Config, profile: &Profile, period: u64) -> Vec<String> {
    let mut found = Vec::new();
    let mut say = |wrong: bool, text: String| found.extend(wrong.then_some(text));
    let view = config.view();
    say(
        view == FingerprintView::None,
        format!(
            "cacheResyncPeriodSeconds is {period}, but objects have no fingerprint (`consumer`): no node is resynced"
        ),
    );
    say(
        view == FingerprintView::Kubelet,
        "`fingerprint.view` is kubelet: a pod that has ended or cannot pull its image blocks the node's resync".to_owned(),
    );
    let (theirs, ours) = (profile.text("cache.informerMode", "Dedicated"), config.fingerprint.informer_mode);
    say(
        theirs != informer_mode(ours),
        format!(
            "cache.informerMode is {theirs}, but `fingerprint.informerMode` expects {}: a pod that has ended blocks the \
             node's resync",
            informer_mode(ours),
        ),
    );
    let (theirs, ours) =
        (profile.text("cache.resyncMethod", "Autodetect"), resync_method(config.fingerprint.method));
    say(
        theirs != "Autodetect" && theirs != ours,
        format!(
            "cache.resyncMethod is {theirs}, but `fingerprint.method` needs {ours} or Autodetect: no fingerprint matches"
        ),
    );
    say(
        profile.text("cache.foreignPodsDetect", "All") == "None",
        "cache.foreignPodsDetect is None: the plugin does not count pods of other schedulers, and may place \
         pods on resources that these already use"
            .to_owned(),
    );
    say(
        profile.text("cache.resyncScope", "All") == "OnlyResources",
        "cache.resyncScope is OnlyResources: a new policy or scope of a kubelet is not noticed until the scheduler restarts"
            .to_owned(),
    );
    found.extend(of_nudge(config.controller.nudge, period));
    found
}

fn of_nudge(nudge: Nudge, period: u64) -> Option<String> {
    match nudge {
        Nudge::Off => Some(
            "`controller.nudge` is off: after a release, rejected pods may wait five minutes for a retry"
                .to_owned(),
        ),
        Nudge::Auto if period > MAX_AUTO_PERIOD => Some(format!(
            "cacheResyncPeriodSeconds is {period}, but `controller.nudge: auto` suits at most {MAX_AUTO_PERIOD}: rejected \
             pods wait up to a minute longer; set `controller.nudge: {period}s`",
        )),
        Nudge::Every(every) if every.get().as_secs() != period => Some(format!(
            "cacheResyncPeriodSeconds is {period}, but `controller.nudge` is {every}: nudges come before the resync or long \
             after it",
        )),
        Nudge::Auto | Nudge::Every(_) => None,
    }
}

/// Returns what is wrong with a plugin that reads the object for each pod.
fn of_direct(config: &Config, setting: &str, skips_reserved: bool) -> Option<String> {
    if !config.reserves() {
        return Some(format!(
            "{setting}, so the plugin reads the object for each pod, but nothing is reserved for bound pods (`consumer`, \
             `pods.source`): the kubelet rejects more pods",
        ));
    }
    let text = format!(
        "{setting}: the next pod is placed before the object reserves for the previous one; set discardReservedNodes to true",
    );
    (!skips_reserved).then_some(text)
}

pub(super) const fn informer_mode(informer: Informer) -> &'static str {
    match informer {
        Informer::Dedicated => "Dedicated",
        Informer::Shared => "Shared",
    }
}

const fn resync_method(method: FingerprintMethod) -> &'static str {
    match method {
        FingerprintMethod::All => "All",
        FingerprintMethod::WithExclusiveResources => "OnlyExclusiveResources",
    }
}
