//! The shared library, built as it is shipped.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `libjitsym.so` in the release profile, without the Rust library because LTO is ignored otherwise, and returns
/// its path. Cargo decides whether there is anything to do.
pub fn build() -> PathBuf {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tmp.parent().unwrap_or(tmp).join("c");
    let status = Command::new(env!("CARGO"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "rustc",
            "--quiet",
            "--locked",
            "--release",
            "--lib",
            "--features",
            "reserve",
            "--crate-type",
            "cdylib,staticlib",
            "--target-dir",
        ])
        .arg(&dir)
        .status()
        .expect("start cargo");
    assert!(status.success(), "building the shared library: {status}");
    dir.join("release/libjitsym.so")
}
