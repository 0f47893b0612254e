# The commands for people. `make` alone lists them.

.PHONY: help demo check test previous core pure matrix admission faults real-faults e2e cluster contract proxy-load pods-load fleet fleet-load tools-load model soak fuzz mutants lint parts bench bench-agent bench-accounting shipped image release reproduce sbom site clean

help:
	@echo 'make demo    watch live NUMA zones: the real agent on a simulated node and cluster (ARGS=--help)'
	@echo 'make check   between two edits: format, clippy, unit tests (under a minute once built)'
	@echo 'make test    every test, those on a real kubelet and API server included (needs root and Go for these; eight minutes once built)'
	@echo 'make previous the comparisons with the kubelet itself, on Kubernetes 1.36 instead of 1.37 (ten minutes the first time, then five)'
	@echo 'make core    only the tests of numacast-core: parsers, accounting, scheduler; in seconds'
	@echo 'make pure    only the unit tests of the other code without I/O, in seconds'
	@echo 'make matrix  random walks over every machine, five kubelet versions and all policies (a quarter of an hour; ARGS=--help)'
	@echo 'make admission  random pods on real kubelets, and what the model of their admission said before (half an hour; ARGS=--help)'
	@echo 'make real-faults  a hundred faults of a real kubelet, API server and etcd (a quarter of an hour; ARGS=--help)'
	@echo 'make cluster a real cluster on described machines, with containerd, until Ctrl-C (needs root; installs Debian packages)'
	@echo 'make e2e     the chart and the image on such a cluster, step by step (a quarter of an hour; ARGS=--help)'
	@echo 'make contract  short pods in a closed loop: a real scheduler with the NodeResourceTopologyMatch plugin and each of its caches, a real kubelet (an hour; ARGS=--help)'
	@echo 'make proxy-load  two hundred clients in a closed loop on the shipped podresources proxy, and on the kubelet (ten minutes; ARGS=--help)'
	@echo 'make pods-load  a thousand clients that watch the shipped Pods API (three minutes; ARGS=--help)'
	@echo 'make fleet   the shipped controller, with 5,000 Nodes and objects in a real API server (minutes; FLEET=10000)'
	@echo 'make fleet-load  two hundred agents and the controller on real API servers, idle and in failures (half an hour; ARGS=--help)'
	@echo 'make tools-load  the shipped fit, show, doctor and ui on a real API server with 5,000 Nodes and objects (ten minutes; ARGS=--help)'
	@echo 'make faults  a thousand faults of the simulated kubelet and API server (five minutes; ARGS=--help)'
	@echo 'make model   a model of the scheduler plugin, its queue and the kubelets of one node and of fifty (minutes; ARGS=--help)'
	@echo 'make soak    an event storm, idle connections and a million changes on the shipped binary (a quarter of an hour; ARGS=--help)'
	@echo 'make fuzz    generated input to every parser, ten minutes each (FUZZ_SECONDS; needs nightly, cargo-fuzz)'
	@echo 'make mutants mutations of code without I/O, and which of them no test detects (hours; needs cargo-mutants)'
	@echo 'make lint    rustfmt, clippy, and the dependency rules if cargo-deny is installed'
	@echo 'make parts   only build the real etcd, kube-apiserver, kubectl and kubelet that the tests use'
	@echo 'make bench   the cost of the agent as the chart installs it, and of variants: benches/figures.json (half an hour; ONLY, VARIANT)'
	@echo 'make image   the static binary and the image to ship, below target/image (needs buildah)'
	@echo 'make release all that a tag publishes, in target/release-VERSION, and checks it (needs buildah and jq; twenty minutes)'
	@echo 'make reproduce  builds them twice, in two directories, and compares the bytes (ten minutes)'
	@echo 'make sbom    the crates of the shipped binaries, as CycloneDX (fetches cargo-cyclonedx)'
	@echo 'make site    README.md and docs/ as a site, below target/site (the first time installs mdBook, some minutes)'
	@echo 'make clean   remove everything that was built'

demo:
	cargo run --locked --features demo -- demo $(ARGS)

# One profile of clippy, and no test program: `make lint` and `make test` have the rest.
check:
	cargo fmt --all --check
	cargo clippy --locked --workspace --lib --bins -- -D warnings
	cargo test --locked --workspace --lib --bins

test:
	tests/run

# What is closest to the kubelet, on the second newest Kubernetes.
previous:
	NUMACAST_KUBERNETES=1.36 cargo test --locked --workspace --features numacast/demo --test real -- pods_served::all fingerprint::the_ steps::two

# Alone, so with no features but its own.
core:
	cargo test --locked --package numacast-core

pure:
	CARGO_TARGET_DIR=target/pure cargo test --locked --manifest-path tests/pure/Cargo.toml

matrix:
	tests/parts/build kubelet@1.33 kubelet@1.34 kubelet@1.35 kubelet@1.36
	cargo test --locked --test matrix -- $(ARGS)

admission:
	tests/parts/build kubelet@1.34 kubelet@1.35 kubelet@1.36
	cargo test --locked --test admission -- $(ARGS)

real-faults: parts
	cargo test --locked --test real-faults -- $(ARGS)

contract: shipped
	tests/parts/build scheduler
	cargo test --locked --test contract -- --binary target/shipped/numacast $(ARGS)

# The image is built first, which takes ten minutes the first time.
e2e: image
	tests/e2e/packages
	cargo test --locked --test e2e -- $(ARGS)

cluster: image
	tests/e2e/packages
	cargo test --locked --test e2e -- --up $(ARGS)

proxy-load: shipped
	tests/parts/build podresources
	cargo test --locked --test proxy-load -- --binary target/shipped/numacast $(ARGS)

pods-load: shipped
	cargo test --locked --test pods-load -- --binary target/shipped/numacast $(ARGS)

# The shipped controller; its memory is printed.
fleet: export NUMACAST_FLEET = $(or $(FLEET),5000)
fleet: export NUMACAST_BINARY = $(CURDIR)/target/shipped/numacast
fleet: parts shipped
	cargo test --locked --test real controller::objects_of_removed_nodes -- --nocapture

fleet-load:
	tests/parts/build helm kube-apiserver@1.33 kube-apiserver@1.36
	cargo test --locked --test fleet-load -- $(ARGS)

tools-load: parts shipped
	cargo test --locked --test tools-load -- --binary target/shipped/numacast --check $(ARGS)

faults:
	cargo test --locked --test faults -- $(ARGS)

# Virtual time: only the computer's speed counts.
model:
	cargo test --locked --profile bench --test model -- $(ARGS)

# ONLY=storm, ONLY=pods, ONLY=probes or ONLY=changes for one part. In memory: a disk is too slow for a storm.
soak: export TMPDIR ?= $(if $(wildcard /dev/shm/.),/dev/shm,/tmp)
soak: shipped
	cargo test --locked --test soak -- --binary target/shipped/numacast $(if $(ONLY),--only $(ONLY)) $(ARGS)

fuzz:
	fuzz/run

mutants:
	tests/mutants

lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features numacast/demo -- -D warnings
	cargo clippy --locked --workspace --test '*' --features numacast/demo -- -D warnings
	cargo clippy --locked -- -D warnings
	cargo clippy --locked --package numacast-core -- -D warnings
	CARGO_TARGET_DIR=target/pure cargo check --locked --manifest-path tests/pure/Cargo.toml --tests
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check bans licenses sources; \
	else echo 'lint: cargo-deny is not installed; the dependency rules of deny.toml were not checked'; fi

parts:
	tests/parts/build

# ONLY=accounting needs no parts. ONLY=<node>, VARIANT=<variant>, IDLE=600 (seconds in which nothing changes), STEPS=20 (pods)
# and NUMACAST_SEED concern the agent's benchmark. A run without ONLY and VARIANT replaces benches/figures.json.
bench: $(if $(filter accounting,$(ONLY)),bench-accounting,bench-agent $(if $(ONLY)$(VARIANT),,bench-accounting))

bench-accounting:
	cargo bench --locked --bench accounting --bench accounting-heap

bench-agent: shipped parts
	cargo bench --locked --bench agent -- $(ONLY)

# The static binary of the image, on which costs and speed are measured.
shipped:
	install -D "$$(image/build --binary | tail -n 1)" target/shipped/numacast

# docs/release.md describes how a release is verified.
image:
	image/build

release:
	@git diff --quiet HEAD || { echo 'make release: commit all changes first, so that the release has a commit' >&2; exit 1; }
	image/build
	image/build --demo
	image/sbom
	image/docs
	image/release

reproduce:
	image/twice

sbom:
	image/sbom

site:
	site/build

clean:
	cargo clean
