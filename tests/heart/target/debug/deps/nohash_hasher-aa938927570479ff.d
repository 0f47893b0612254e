/work/main/tests/heart/target/debug/deps/nohash_hasher-aa938927570479ff.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/nohash-hasher-0.2.0/src/lib.rs

/work/main/tests/heart/target/debug/deps/libnohash_hasher-aa938927570479ff.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/nohash-hasher-0.2.0/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/nohash-hasher-0.2.0/src/lib.rs:
