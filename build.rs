//! Sets the link arguments of the shared library that cargo does not set by itself, and makes the CMake package for cargo-c
//! and the manual pages.

use std::path::PathBuf;
use std::{env, fs};

#[cfg(feature = "reserve")]
#[path = "man/mod.rs"]
mod man;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cmake");
    // While the major version is 0, every minor version may break the ABI.
    let major = env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    let minor = env::var("CARGO_PKG_VERSION_MINOR").unwrap_or_default();
    let soversion = if major == "0" { format!("0.{minor}") } else { major.clone() };
    let soname = format!("libjitsym.so.{soversion}");
    if env::var_os("CARGO_FEATURE_CAPI").is_some() {
        // cargo-c sets the soname by itself.
        cmake_package(&soname, &major, &minor);
    } else {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    }
    #[cfg(feature = "reserve")]
    {
        let dir = out_dir("man");
        for (name, text) in man::pages() {
            fs::write(dir.join(name), text).expect("manual page");
        }
    }
    // After a dlclose, threads may still run code of the library, or call it when they end.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // perf 7 assumes that code is as far from the beginning of its object as in the file. Without this argument, lld maps the
    // code one page farther away. perf would then use the wrong tables for the code, or assume that the object overlaps the
    // next object.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,separate-code");
}

/// Fills in cmake/*.in for `PREFIX/share/cmake/jitsym`, the directory into which cargo-c installs data. scripts/install.sh
/// does the same for its own directory.
fn cmake_package(soname: &str, major: &str, minor: &str) {
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let shared_file = format!("libjitsym.so.{version}");
    let values = [
        ("VERSION", &*version),
        ("VERSION_MAJOR", major),
        ("VERSION_MINOR", minor),
        ("SONAME", soname),
        ("SHARED_FILE", &shared_file),
        ("STATIC_LIBS_LIST", "-lutil;-lrt;-lpthread;-lm;-ldl;-lc"),
        ("CMAKE_TO_LIBDIR", "../../../lib/${CMAKE_LIBRARY_ARCHITECTURE};../../../lib64;../../../lib"),
        ("CMAKE_TO_INCLUDEDIR", "../../../include"),
    ];
    let dir = out_dir("capi");
    for name in ["jitsymConfig.cmake", "jitsymConfigVersion.cmake"] {
        let mut text = fs::read_to_string(format!("cmake/{name}.in")).expect("template");
        for (placeholder, value) in values {
            text = text.replace(&format!("@{placeholder}@"), value);
        }
        fs::write(dir.join(name), text).expect("CMake package");
    }
}

/// An empty directory for files that scripts/install.sh or cargo-c installs.
fn out_dir(name: &str) -> PathBuf {
    let dir = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("directory for installed files");
    dir
}
