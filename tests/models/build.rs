//! Builds the library for loom; see `src/sys/sync`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=jitsym_loom");
}
