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
    /// Devices in the node's ResourceSlices.
    pub(crate) devices: usize,
}

/// All variants, the default first.
pub(crate) const VARIANTS: [Variant; 7] = [
    Variant { name: "default", title: "default", values: || json!({}), devices: 0 },
    Variant {
        name: "directory",
        title: "`kubelet.mountDir: true`",
        values: || json!({"kubelet": {"mountDir": true}}),
        devices: 0,
    },
    Variant {
        name: "kai-direct",
        title: "`consumer: kaiDirect`",
        values: || json!({"config": {"consumer": "kaiDirect"}}),
        devices: 0,
    },
    Variant {
        name: "none",
        title: "`consumer: none`",
        values: || json!({"config": {"consumer": "none"}}),
        devices: 0,
    },
    Variant {
        name: "direct",
        title: "`consumer: schedulerPluginsDirect`",
        values: || json!({"config": {"consumer": "schedulerPluginsDirect"}}),
        devices: 0,
    },
    Variant {
        name: "kubelet-view",
        title: "`fingerprint.view: kubelet`",
        values: || json!({"config": {"fingerprint": {"view": "kubelet"}}}),
        devices: 0,
    },
    Variant { name: "slices", title: "500 devices in ResourceSlices", values: || json!({}), devices: 500 },
];
