//! The measured configurations: the default as the chart installs it, and alternatives that users may choose.

use serde_json::{Value, json};

/// One configuration.
pub(crate) struct Variant {
    /// The name, as in `VARIANT`.
    pub(crate) name: &'static str,
    /// The title, in Markdown.
    pub(crate) title: &'static str,
    /// Chart values.
    pub(crate) values: fn() -> Value,
}

/// All variants, the default first.
pub(crate) const VARIANTS: [Variant; 6] = [
    Variant { name: "default", title: "default", values: || json!({}) },
    Variant {
        name: "directory",
        title: "`kubelet.mountDir: true`",
        values: || json!({"kubelet": {"mountDir": true}}),
    },
    Variant { name: "kai", title: "`consumer: kai`", values: || json!({"config": {"consumer": "kai"}}) },
    Variant { name: "none", title: "`consumer: none`", values: || json!({"config": {"consumer": "none"}}) },
    Variant {
        name: "direct",
        title: "`consumer: schedulerPluginsDirect`",
        values: || json!({"config": {"consumer": "schedulerPluginsDirect"}}),
    },
    Variant {
        name: "kubelet-view",
        title: "`fingerprint.view: kubelet`",
        values: || json!({"config": {"fingerprint": {"view": "kubelet"}}}),
    },
];
