use super::*;
use crate::config::PodSource;
use crate::scheduler::{FingerprintMethod, FingerprintView, Informer};

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

/// Returns the only disagreement after a replacement in the profile that fits.
fn after(config: &Config, from: &str, to: &str) -> String {
    let fits = profile(config, "numa-scheduler").unwrap();
    assert!(fits.contains(from), "{fits}");
    let found = disagreements(config, &fits.replace(from, to)).unwrap();
    assert_eq!(found.len(), 1, "{from} -> {to}: {found:?}");
    found.into_iter().next().unwrap()
}

fn direct() -> Config {
    config(|c| c.consumer = Consumer::SchedulerPluginsDirect)
}

#[test]
fn the_printed_profile_fits() {
    for nudge in ["auto", "5s", "30s"] {
        for consumer in [Consumer::SchedulerPlugins, Consumer::SchedulerPluginsDirect] {
            for informer in [Informer::Dedicated, Informer::Shared] {
                let config = config(|c| {
                    c.consumer = consumer;
                    c.fingerprint.informer_mode = informer;
                    c.controller.nudge = serde_json::from_value(nudge.into()).unwrap();
                });
                let text = profile(&config, "numa").unwrap();
                assert_eq!(disagreements(&config, &text), Ok(vec![]), "{text}");
            }
        }
    }
    for consumer in [Consumer::Kai, Consumer::KaiDirect, Consumer::None] {
        let config = config(|c| c.consumer = consumer);
        assert!(matches!(profile(&config, "numa"), Err(SchedulerConfigError::OtherConsumer(_))));
        assert!(matches!(disagreements(&config, ""), Err(SchedulerConfigError::OtherConsumer(_))));
    }
}

#[test]
fn each_disagreement_is_named_with_what_it_leads_to() {
    let default = Config::default();
    let enabled = "multiPoint:\n      enabled:\n      - name: NodeResourceTopologyMatch\n";
    let disabled =
        |point: &str, name: &str| format!("{enabled}    {point}:\n      disabled: [{{name: {name}}}]\n");
    let shared = config(|c| c.fingerprint.informer_mode = Informer::Shared);
    let exclusive = config(|c| c.fingerprint.method = FingerprintMethod::WithExclusiveResources);
    let unreserved = config(|c| {
        c.consumer = Consumer::SchedulerPluginsDirect;
        c.pods.source = PodSource::PodsApi;
    });
    let cases: [(&Config, &str, &str, &str); 24] = [
        (&default, "podMaxBackoffSeconds: 2\n", "", "podMaxBackoffSeconds is 10, its default"),
        (
            &default,
            "podInitialBackoffSeconds: 1",
            "podInitialBackoffSeconds: 4",
            "podInitialBackoffSeconds is 4:",
        ),
        (
            &default,
            "scheduler.config.k8s.io/v1\nkind: KubeS",
            "scheduler.config.k8s.io/v1beta3\nkind: KubeS",
            "does not start",
        ),
        (
            &default,
            "- name: NodeResourceTopologyMatch\n  pl",
            "- name: Coscheduling\n  pl",
            "no profile enables",
        ),
        (&default, enabled, &disabled("filter", "'*'"), "disabled in plugins.filter: "),
        (
            &default,
            enabled,
            &disabled("reserve", PLUGIN),
            "disabled in plugins.reserve: nothing is subtracted",
        ),
        (&direct(), enabled, &disabled("reserve", PLUGIN), "disabled in plugins.reserve: a node with a pod"),
        (&direct(), enabled, &disabled("postBind", PLUGIN), "disabled in plugins.postBind: "),
        (&default, enabled, &disabled("queueSort", "'*'"), "sorts pods"),
        (&default, "      cacheResyncPeriodSeconds: 1\n", "", "cacheResyncPeriodSeconds is 0, the default"),
        (
            &default,
            "cacheResyncPeriodSeconds: 1",
            "discardReservedNodes: true",
            "discardReservedNodes is true, so",
        ),
        (&default, "PeriodSeconds: 1\n", "PeriodSeconds: 11\n", "`controller.nudge: 11s`"),
        (
            &direct(),
            "discardReservedNodes: true",
            "cacheResyncPeriodSeconds: 5",
            "no fingerprint (`consumer`)",
        ),
        (&direct(), "      discardReservedNodes: true\n", "", "set discardReservedNodes to true"),
        (&unreserved, "apiVersion: kubescheduler.config.k8s.io/v1\n      ", "", "nothing is reserved"),
        (&default, "informerMode: Dedicated", "informerMode: Shared", "cache.informerMode is Shared"),
        (&shared, "        informerMode: Shared\n", "", "cache.informerMode is Dedicated"),
        (&default, "Autodetect", "OnlyExclusiveResources", "needs All or Autodetect"),
        (&exclusive, "Autodetect", "All", "needs OnlyExclusiveResources or Autodetect"),
        (&default, "Detect: All", "Detect: None", "cache.foreignPodsDetect is None"),
        (
            &default,
            "Autodetect",
            "Autodetect\n        resyncScope: OnlyResources",
            "cache.resyncScope is OnlyResources",
        ),
        (
            &direct(),
            "      scoring",
            "      preemptionMode: Enabled\n      scoring",
            "preemptionMode is Enabled",
        ),
        (
            &default,
            "cacheResyncPeriodSeconds: 1",
            "cacheResyncPeriodSeconds: 1\n      cacheResync: 1",
            "cacheResync is no argument",
        ),
        (&default, "LeastAllocated", "Least", "scoringStrategy.type is Least, none of"),
    ];
    for (config, from, to, expected) in cases {
        let sentence = after(config, from, to);
        assert!(sentence.contains(expected), "{expected}: {sentence}");
    }
}

#[test]
fn our_own_settings_may_be_the_wrong_ones() {
    let fits = profile(&Config::default(), "numa").unwrap();
    let of = |change: fn(&mut Config)| disagreements(&config(change), &fits).unwrap().join("\n");
    assert!(
        of(|c| c.fingerprint.view = Some(FingerprintView::Kubelet))
            .contains("is kubelet: a pod that has ended")
    );
    assert!(of(|c| c.fingerprint.view = Some(FingerprintView::None)).contains("no fingerprint"));
    assert!(of(|c| c.controller.nudge = crate::config::Nudge::Off).contains("`controller.nudge` is off"));
    let other = |c: &mut Config| c.controller.nudge = serde_json::from_value("7s".into()).unwrap();
    assert!(of(other).contains("`controller.nudge` is 7s"));
}

#[test]
fn only_profiles_with_the_plugin_count() {
    let fits = profile(&Config::default(), "numa").unwrap();
    let two = fits.replace("profiles:\n", "profiles:\n- schedulerName: default-scheduler\n- plugins:\n");
    assert_eq!(disagreements(&Config::default(), &two), Ok(vec![]));
    let second =
        fits.split_once("profiles:\n").unwrap().1.replace("numa", "other").replace("Dedicated", "Shared");
    let found = disagreements(&Config::default(), &(fits + &second)).unwrap();
    assert!(
        matches!(found.as_slice(), [one] if one.starts_with("profile other: cache.informerMode")),
        "{found:?}"
    );
}

#[test]
fn what_is_no_scheduler_configuration_is_an_error() {
    for (text, expected) in [
        ("", "kind is \"\""),
        ("kind: Deployment", "kind is \"Deployment\""),
        ("[1]", "no KubeSchedulerConfiguration"),
        ("kind: [", "no KubeSchedulerConfiguration"),
        ("kind: KubeSchedulerConfiguration\nprofiles: 1", "no KubeSchedulerConfiguration"),
    ] {
        let error = disagreements(&Config::default(), text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    // `null` is the same as absent.
    let nulls = "kind: KubeSchedulerConfiguration\nprofiles: [{plugins: null, pluginConfig: null}]\npodMaxBackoffSeconds: null";
    assert!(disagreements(&Config::default(), nulls).is_ok());
}

#[test]
fn the_document_shows_the_profile_of_the_defaults() {
    let text = format!("```yaml\n{}```\n", profile(&Config::default(), "numa-scheduler").unwrap());
    crate::generated::section("docs/scheduler.md", "configuration of the scheduler", &text);
}
