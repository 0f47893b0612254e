// Upstream's own fingerprint of pods, for comparison. Built by ../build.
module numacast.test/parts/fingerprint

go 1.21

require github.com/k8stopologyawareschedwg/podfingerprint v0.2.2

require github.com/OneOfOne/xxhash v1.2.8 // indirect
