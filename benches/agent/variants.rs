//! What is measured: the default as the chart installs it, and beside it what people may choose instead.

use serde_json::{Value, json};

/// One choice.
pub(crate) struct Variant {
    /// As `VARIANT` has it.
    pub(crate) name: &'static str,
    /// In Markdown.
    pub(crate) title: &'static str,
    /// Values of the chart.
    pub(crate) values: fn() -> Value,
}

/// The default first.
pub(crate) const VARIANTS: [Variant; 6] = [
    Variant { name: "default", title: "default", values: || json!({}) },
    Variant {
        name: "directory",
        title: "`kubelet.mountDir: true`",
        values: || json!({"kubelet": {"mountDir": true}}),
    },
    Variant { name: "kai", title: "`consumer: kai`", values: || json!({"config": {"consumer": "kai"}}) },
    Variant { name: "none", title: "`consumer: none`", values: || json!({"config": {"consumer": "none"}}) },
    Variant { name: "direct", title: "`cache: direct`", values: || json!({"config": {"cache": "direct"}}) },
    Variant {
        name: "kubelet-view",
        title: "`fingerprint.view: kubelet`",
        values: || json!({"config": {"fingerprint": {"view": "kubelet"}}}),
    },
];
