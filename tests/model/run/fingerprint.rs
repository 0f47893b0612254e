//! The fingerprint of a set of pods as the plugin computes it: XXH64 of each namespace and name, sorted, and
//! XXH64 of these (k8stopologyawareschedwg/podfingerprint). Written independently of numacast's code.

const P1: u64 = 0x9E37_79B1_85EB_CA87;
const P2: u64 = 0xC2B2_AE3D_27D4_EB4F;
const P3: u64 = 0x1656_67B1_9E37_79F9;
const P4: u64 = 0x85EB_CA77_C2B2_AE63;
const P5: u64 = 0x27D4_EB2F_1656_67C5;

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn round(lane: u64, input: u64) -> u64 {
    lane.wrapping_add(input.wrapping_mul(P2)).rotate_left(31).wrapping_mul(P1)
}

/// XXH64.
pub(crate) fn xxh64(bytes: &[u8], seed: u64) -> u64 {
    let mut rest = bytes;
    let mut hash = if bytes.len() < 32 {
        seed.wrapping_add(P5)
    } else {
        let mut lanes =
            [seed.wrapping_add(P1).wrapping_add(P2), seed.wrapping_add(P2), seed, seed.wrapping_sub(P1)];
        while rest.len() >= 32 {
            for (number, lane) in lanes.iter_mut().enumerate() {
                *lane = round(*lane, word(&rest[8 * number..8 * number + 8]));
            }
            rest = &rest[32..];
        }
        let [a, b, c, d] = lanes;
        let start = a
            .rotate_left(1)
            .wrapping_add(b.rotate_left(7))
            .wrapping_add(c.rotate_left(12))
            .wrapping_add(d.rotate_left(18));
        let merge = |hash: u64, lane| (hash ^ round(0, lane)).wrapping_mul(P1).wrapping_add(P4);
        lanes.into_iter().fold(start, merge)
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    while rest.len() >= 8 {
        hash ^= round(0, word(&rest[..8]));
        hash = hash.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
        rest = &rest[8..];
    }
    if rest.len() >= 4 {
        hash ^= word(&rest[..4]).wrapping_mul(P1);
        hash = hash.rotate_left(23).wrapping_mul(P2).wrapping_add(P3);
        rest = &rest[4..];
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(P5);
        hash = hash.rotate_left(11).wrapping_mul(P1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(P2);
    hash = (hash ^ hash >> 29).wrapping_mul(P3);
    hash ^ hash >> 32
}

/// The hash of one pod.
pub(crate) fn pod_hash(namespace: &str, name: &str) -> u64 {
    xxh64(name.as_bytes(), xxh64(namespace.as_bytes(), 0))
}

/// The fingerprint of a set of pod hashes.
pub(crate) fn sum(hashes: impl IntoIterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = hashes.into_iter().collect();
    sorted.sort_unstable();
    let bytes: Vec<u8> = sorted.iter().flat_map(|hash| hash.to_le_bytes()).collect();
    xxh64(&bytes, 0)
}

#[cfg(test)]
#[allow(dead_code, unused_imports)] // the long form has no test harness
mod tests {
    use super::*;

    #[test]
    fn fingerprints_equal_the_upstream_vectors() {
        let of = |pods: &[(&str, &str)]| {
            let hashes = pods.iter().map(|(namespace, name)| pod_hash(namespace, name));
            format!("{:016x}", sum(hashes))
        };
        let five = [("ns1", "n1"), ("ns1", "n2"), ("ns2", "n1"), ("ns3", "n1"), ("ns3", "n2")];
        for (number, expected) in [
            (0, "ef46db3751d8e999"),
            (1, "bb89419dce9a8948"),
            (2, "a5a0bb7911344362"),
            (4, "d807b95b31183d31"),
        ] {
            assert_eq!(of(&five[..number]), expected);
        }
        assert_eq!(of(&five), "b92008c14168b3a6");
        assert_eq!(of(&[("default", "pod-a"), ("default", "pod-a")]), "88bbc2d2fe1e3cb1");
        let long = "very-long-pod-name-that-exceeds-thirty-two-bytes-0123456789";
        assert_eq!(of(&[("kube-system", "coredns-5d78c9869d-abcde"), ("default", long)]), "e78784910a28b542");
    }
}
