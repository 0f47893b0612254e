/work/main/tests/heart/target/debug/deps/heart-7c703d5ff3224690.d: lib.rs ../../src/machine.rs ../../src/machine/files.rs ../../src/machine/id_set.rs ../../src/machine/sysfs.rs ../../src/pattern.rs ../../src/quantity.rs ../../src/randomised.rs ../../src/topology.rs ../../src/topology/attributes.rs ../../src/topology/cpus.rs ../../src/topology/devices.rs ../../src/topology/hidden.rs ../../src/topology/memory.rs ../../src/topology/rules.rs ../../src/topology/tests.rs ../../src/topology/tests/edges.rs ../../src/topology/tests/joined.rs ../../src/topology/tests/properties.rs ../../src/topology/tests/words.rs ../../src/kubelet/config.rs ../../src/kubelet/state.rs ../../src/kubelet/types.rs

/work/main/tests/heart/target/debug/deps/libheart-7c703d5ff3224690.rmeta: lib.rs ../../src/machine.rs ../../src/machine/files.rs ../../src/machine/id_set.rs ../../src/machine/sysfs.rs ../../src/pattern.rs ../../src/quantity.rs ../../src/randomised.rs ../../src/topology.rs ../../src/topology/attributes.rs ../../src/topology/cpus.rs ../../src/topology/devices.rs ../../src/topology/hidden.rs ../../src/topology/memory.rs ../../src/topology/rules.rs ../../src/topology/tests.rs ../../src/topology/tests/edges.rs ../../src/topology/tests/joined.rs ../../src/topology/tests/properties.rs ../../src/topology/tests/words.rs ../../src/kubelet/config.rs ../../src/kubelet/state.rs ../../src/kubelet/types.rs

lib.rs:
../../src/machine.rs:
../../src/machine/files.rs:
../../src/machine/id_set.rs:
../../src/machine/sysfs.rs:
../../src/pattern.rs:
../../src/quantity.rs:
../../src/randomised.rs:
../../src/topology.rs:
../../src/topology/attributes.rs:
../../src/topology/cpus.rs:
../../src/topology/devices.rs:
../../src/topology/hidden.rs:
../../src/topology/memory.rs:
../../src/topology/rules.rs:
../../src/topology/tests.rs:
../../src/topology/tests/edges.rs:
../../src/topology/tests/joined.rs:
../../src/topology/tests/properties.rs:
../../src/topology/tests/words.rs:
../../src/kubelet/config.rs:
../../src/kubelet/state.rs:
../../src/kubelet/types.rs:
