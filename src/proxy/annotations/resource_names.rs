//! The resource names under which devices are listed, so that clients find them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::names::is_device_resource;

/// The type of accelerators, of any vendor.
pub(super) const GPU: &str = "gpu";

/// The prefixes of Koordinator's resources; the second is the former one.
const DOMAINS: [&str; 2] = ["koordinator.sh/", "kubernetes.io/"];

/// The accelerators' resource names by vendor, as in the vendors' own device plugins and exporters. Without a
/// vendor they are NVIDIA's, the only ones that Koordinator itself detects.
const ACCELERATORS: [(&str, &str); 14] = [
    ("", "nvidia.com/gpu"),
    ("nvidia", "nvidia.com/gpu"),
    ("amd", "amd.com/gpu"),
    ("intel", "gpu.intel.com/i915"),
    ("huawei", "huawei.com/npu"),
    ("cambricon", "cambricon.com/mlu"),
    ("metax", "metax-tech.com/gpu"),
    ("hygon", "hygon.com/dcu"),
    ("baidu", "kunlunxin.com/xpu"),
    ("kunlunxin", "kunlunxin.com/xpu"),
    ("iluvatar", "iluvatar.com/gpu"),
    ("mthreads", "mthreads.com/gpu"),
    ("enflame", "enflame.com/gcu"),
    ("thead", "alibabacloud.com/ppu"),
];

/// Returns the resource name of a type's devices; `None` if the type makes no valid name. Configured names
/// take precedence: first that of the type and vendor, then that of the type.
pub(super) fn resource(configured: &BTreeMap<String, String>, kind: &str, vendor: &str) -> Option<Arc<str>> {
    if kind.contains('/') {
        return None;
    }
    let vendor = vendor.to_ascii_lowercase();
    let exact = configured.get(&format!("{kind}/{vendor}"));
    if let Some(name) = exact.or_else(|| configured.get(kind)) {
        return Some(name.as_str().into());
    }
    let known = ACCELERATORS.iter().find(|(known, _)| kind == GPU && *known == vendor);
    let name = known.map_or_else(|| format!("koordinator.sh/{kind}"), |(_, name)| (*name).to_owned());
    is_device_resource(&name).then(|| name.into())
}

/// Returns the part after Koordinator's prefix, if the name has it.
pub(super) fn unprefixed(name: &str) -> Option<&str> {
    DOMAINS.iter().find_map(|domain| name.strip_prefix(domain))
}

pub(super) fn counts_accelerators(name: &str) -> bool {
    name == "dcu.com/gpu" || ACCELERATORS.iter().any(|(_, known)| *known == name)
}
