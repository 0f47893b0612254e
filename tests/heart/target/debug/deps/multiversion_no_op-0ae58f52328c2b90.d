/work/main/tests/heart/target/debug/deps/multiversion_no_op-0ae58f52328c2b90.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/multiversion_no_op-1.0.0/src/lib.rs

/work/main/tests/heart/target/debug/deps/libmultiversion_no_op-0ae58f52328c2b90.so: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/multiversion_no_op-1.0.0/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/multiversion_no_op-1.0.0/src/lib.rs:
