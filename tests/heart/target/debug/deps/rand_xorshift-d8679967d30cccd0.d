/work/main/tests/heart/target/debug/deps/rand_xorshift-d8679967d30cccd0.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs

/work/main/tests/heart/target/debug/deps/librand_xorshift-d8679967d30cccd0.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/rand_xorshift-0.5.0/src/lib.rs:
