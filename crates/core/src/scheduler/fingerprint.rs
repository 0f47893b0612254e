//! The fingerprint of a set of pods, identical to the scheduler plugin's (upstream:
//! k8stopologyawareschedwg/podfingerprint, v0.2.2).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// The prefix of every fingerprint, which includes the version of the algorithm.
const PREFIX: &str = "pfp0v001";

/// Returns the hash of one pod. Pods of the same name have the same hash, whatever their UIDs.
#[must_use]
pub fn pod_hash(namespace: &str, name: &str) -> u64 {
    XxHash64::oneshot(XxHash64::oneshot(0, namespace.as_bytes()), name.as_bytes())
}

/// Which of the view's pods a fingerprint covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FingerprintMethod {
    /// All pods.
    #[default]
    All,
    /// Pods with exclusive resources.
    WithExclusiveResources,
}

impl FingerprintMethod {
    /// Returns its name in the object.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::WithExclusiveResources => "with-exclusive-resources",
        }
    }
}

/// The fingerprint that the object publishes, and how its pods were selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PodFingerprint {
    /// The fingerprint, or [`Fingerprint::WITHHELD`].
    pub value: Fingerprint,
    /// How the pods were selected.
    pub method: FingerprintMethod,
}

impl PodFingerprint {
    /// Whether the fingerprint is withheld, so that the scheduler plugin's never matches it.
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        self.value == Fingerprint::WITHHELD
    }
}

/// Identifies a set of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// A well-formed fingerprint of no real set of pods (except with probability 2^-64): it never matches the
    /// plugin's.
    pub const WITHHELD: Self = Self(0);

    /// Returns the fingerprint of the pods with these hashes, in any order.
    #[must_use]
    pub fn of(hashes: impl IntoIterator<Item = u64>) -> Self {
        let mut hashes: Vec<u64> = hashes.into_iter().collect();
        hashes.sort_unstable();
        let bytes: Vec<u8> = hashes.into_iter().flat_map(u64::to_le_bytes).collect();
        Self(XxHash64::oneshot(0, &bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(pods: &[&str]) -> String {
        let hashes = pods.iter().map(|pod| {
            let (namespace, name) = pod.split_once('/').unwrap();
            pod_hash(namespace, name)
        });
        Fingerprint::of(hashes).to_string()
    }

    #[test]
    fn methods_have_the_upstream_names() {
        use FingerprintMethod::{All, WithExclusiveResources};
        let names = [All, WithExclusiveResources].map(FingerprintMethod::name);
        assert_eq!(names, ["all", "with-exclusive-resources"]);
    }

    #[test]
    fn pod_hashes_equal_the_upstream_ones() {
        assert_eq!(XxHash64::oneshot(0, b"ns1"), 0xd4f9_be77_dac1_e966);
        assert_eq!(XxHash64::oneshot(0, b"default"), 0xcb14_bd8a_5c56_1c96);
        for (pod, hash) in [
            (("ns1", "n1"), 0x6fe7_d8da_4b83_52c3),
            (("ns1", "n2"), 0xfdd2_50f5_ccd8_b03f),
            (("ns2", "n1"), 0x98cf_f5d0_17b1_f8b1),
            (("ns3", "n1"), 0x4b4a_b480_82de_0438),
            (("ns3", "n2"), 0xa5e2_ddfb_bd1b_cc6d),
            (("default", "test-pod-0"), 0xf1bb_0c67_299d_7810),
            (("default", "pod-a"), 0x069f_6550_1022_0ab2),
            (("kube-system", "pod-b"), 0x7acc_5a16_c81a_ce57),
            (("a", "b"), 0x76d9_a191_6ddc_a8e6),
            (("b", "a"), 0xccfd_583d_30a3_eb09),
            (("kube-system", "coredns-5d78c9869d-abcde"), 0x935f_26bf_f852_9d6f),
            (
                ("default", "very-long-pod-name-that-exceeds-thirty-two-bytes-0123456789"),
                0xaf59_2856_612e_e102,
            ),
        ] {
            assert_eq!(pod_hash(pod.0, pod.1), hash, "{pod:?}");
        }
    }

    #[test]
    fn fingerprints_equal_the_upstream_ones() {
        let coredns = "kube-system/coredns-5d78c9869d-abcde";
        let long = "default/very-long-pod-name-that-exceeds-thirty-two-bytes-0123456789";
        for (pods, expected) in [
            (&[][..], "pfp0v001ef46db3751d8e999"),
            (&["ns1/n1"], "pfp0v001bb89419dce9a8948"),
            (&["ns1/n2"], "pfp0v00153a7becd4a82fc14"),
            (&["ns1/n1", "ns1/n2"], "pfp0v001a5a0bb7911344362"),
            (&["ns1/n1", "ns1/n2", "ns2/n1", "ns3/n1"], "pfp0v001d807b95b31183d31"),
            (&["ns1/n1", "ns1/n2", "ns2/n1", "ns3/n1", "ns3/n2"], "pfp0v001b92008c14168b3a6"),
            (&["default/test-pod-0"], "pfp0v001fe53c4dbd2c5f4a0"),
            (&["default/pod-a", "kube-system/pod-b"], "pfp0v0013c74a72bae9bd313"),
            (&["kube-system/pod-b", "default/pod-a"], "pfp0v0013c74a72bae9bd313"),
            (&["default/pod-a", "default/pod-a"], "pfp0v00188bbc2d2fe1e3cb1"),
            (&[coredns, long], "pfp0v001e78784910a28b542"),
            (&["a/b"], "pfp0v001b62c44d557501be8"),
            (&["b/a"], "pfp0v001c82737bcdcda55ca"),
        ] {
            assert_eq!(fingerprint(pods), expected, "{pods:?}");
        }
    }

    #[test]
    fn the_withheld_value_is_well_formed() {
        let withheld = Fingerprint::WITHHELD.to_string();
        assert_eq!((withheld.len(), &withheld[..8]), (24, PREFIX));
        assert_ne!(withheld, fingerprint(&[]), "no pods are a set as well");
    }
}
