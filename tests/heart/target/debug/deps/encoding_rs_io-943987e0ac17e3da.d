/work/main/tests/heart/target/debug/deps/encoding_rs_io-943987e0ac17e3da.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/util.rs

/work/main/tests/heart/target/debug/deps/libencoding_rs_io-943987e0ac17e3da.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/lib.rs /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/util.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/lib.rs:
/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/encoding_rs_io-0.1.8/src/util.rs:
