# Everything a person runs. `make` alone tells what there is.

.PHONY: help demo test matrix lint parts bench clean

help:
	@echo 'make demo    watch live NUMA zones: the real agent on a simulated node and cluster'
	@echo 'make test    every test, those on a real kubelet and API server included (needs root and Go for these)'
	@echo 'make matrix  random walks over every machine, four kubelet versions and all policies (25 minutes; ARGS=--help)'
	@echo 'make lint    rustfmt, clippy, and the dependency rules if cargo-deny is installed'
	@echo 'make parts   only build the real etcd, kube-apiserver, kubectl and kubelet that the tests use'
	@echo 'make bench   the figures of docs/performance.md, measured here'
	@echo 'make clean   remove everything that was built'

demo:
	cargo run --locked -- demo

test:
	tests/run

matrix:
	tests/parts/build kubelet@1.33 kubelet@1.34 kubelet@1.35
	cargo test --locked --test matrix -- $(ARGS)

lint:
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --no-default-features -- -D warnings
	@if cargo deny --version >/dev/null 2>&1; then cargo deny --offline check bans licenses sources; \
	else echo 'lint: cargo-deny is not installed; the dependency rules of deny.toml were not checked'; fi

parts:
	tests/parts/build

bench: parts
	cargo build --locked --release --no-default-features
	install -D target/release/numacast target/shipped/numacast
	cargo bench --locked --bench agent -- $(ONLY)

clean:
	cargo clean
