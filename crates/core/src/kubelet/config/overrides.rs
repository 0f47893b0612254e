//! The user's overrides of the kubelet's configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::KubeletConfig;

/// Fields of a `KubeletConfiguration` that override the kubelet's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Overrides {
    /// As [`KubeletConfig::cpu_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_manager_policy: Option<String>,
    /// As [`KubeletConfig::memory_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_manager_policy: Option<String>,
    /// As [`KubeletConfig::topology_manager_policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_policy: Option<String>,
    /// As [`KubeletConfig::topology_manager_scope`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_manager_scope: Option<String>,
    /// Options by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
}

impl Overrides {
    /// Checks the values.
    ///
    /// # Errors
    /// For a policy or scope that no kubelet has, and for a policy without a scope or a scope without a
    /// policy.
    pub fn check(&self) -> Result<(), String> {
        let policies = "none, best-effort, restricted, single-numa-node";
        for (field, value, known) in [
            ("cpuManagerPolicy", &self.cpu_manager_policy, "none, static"),
            ("memoryManagerPolicy", &self.memory_manager_policy, "None, Static"),
            ("topologyManagerPolicy", &self.topology_manager_policy, policies),
            ("topologyManagerScope", &self.topology_manager_scope, "container, pod"),
        ] {
            if let Some(value) = value.as_deref().filter(|value| !known.split(", ").any(|one| one == *value))
            {
                return Err(format!("{field}: unknown value `{value}`, expected one of {known}"));
            }
        }
        match (&self.topology_manager_policy, &self.topology_manager_scope) {
            (Some(_), None) => {
                Err("consumers misread a policy without its scope: set topologyManagerScope as well"
                    .to_owned())
            }
            (None, Some(_)) => {
                Err("a scope has no meaning without a policy: set topologyManagerPolicy as well".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Overrides the values in `config`.
    pub fn apply(&self, config: &mut KubeletConfig) {
        for (given, key) in [
            (&self.cpu_manager_policy, &mut config.cpu_manager_policy),
            (&self.memory_manager_policy, &mut config.memory_manager_policy),
            (&self.topology_manager_policy, &mut config.topology_manager_policy),
            (&self.topology_manager_scope, &mut config.topology_manager_scope),
        ] {
            if let Some(given) = given {
                key.clone_from(given);
            }
        }
        config.topology_manager_policy_options.extend(self.topology_manager_policy_options.clone());
    }

    /// Returns a configuration of these values alone, with unset policies empty; `None` if nothing is set.
    #[must_use]
    pub fn as_config(&self) -> Option<KubeletConfig> {
        if *self == Self::default() {
            return None;
        }
        let mut config = KubeletConfig {
            cpu_manager_policy: String::new(),
            memory_manager_policy: String::new(),
            topology_manager_policy: String::new(),
            topology_manager_scope: String::new(),
            ..KubeletConfig::default()
        };
        self.apply(&mut config);
        Some(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_that_no_kubelet_has_are_errors() {
        let check = |json: &str| serde_json::from_str::<Overrides>(json).unwrap().check();
        assert_eq!(check("{}"), Ok(()));
        assert_eq!(
            check(r#"{"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod"}"#),
            Ok(())
        );
        for (json, reason) in [
            (
                r#"{"topologyManagerPolicy": "strict", "topologyManagerScope": "pod"}"#,
                "topologyManagerPolicy: unknown value `strict`, expected one of none, best-effort",
            ),
            (r#"{"memoryManagerPolicy": "static"}"#, "expected one of None, Static"),
            (r#"{"topologyManagerPolicy": "restricted"}"#, "a policy without its scope"),
            (r#"{"topologyManagerScope": "pod"}"#, "a scope has no meaning without a policy"),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(reason), "{json}: {error}");
        }
    }

    #[test]
    fn overrides_win_and_leave_the_rest_unchanged() {
        assert_eq!(Overrides::default().as_config(), None);
        let options = |name: &str| BTreeMap::from([(name.to_owned(), "true".to_owned())]);
        let overrides = Overrides {
            topology_manager_policy: Some("restricted".into()),
            topology_manager_scope: Some("pod".into()),
            topology_manager_policy_options: options("a"),
            ..Overrides::default()
        };
        let alone = overrides.as_config().unwrap();
        assert_eq!(
            (alone.topology_manager_policy.as_str(), alone.cpu_manager_policy.as_str()),
            ("restricted", "")
        );
        let mut read =
            KubeletConfig { topology_manager_policy_options: options("b"), ..KubeletConfig::default() };
        overrides.apply(&mut read);
        assert_eq!((read.topology_manager_scope.as_str(), read.cpu_manager_policy.as_str()), ("pod", "none"));
        assert_eq!(read.topology_manager_policy_options.len(), 2);
    }
}
