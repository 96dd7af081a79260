//! Link arguments of the shared library, which cargo does not set by itself.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // While the major version is 0, every minor version may break the ABI.
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    let minor = std::env::var("CARGO_PKG_VERSION_MINOR").unwrap_or_default();
    let soversion = if major == "0" { format!("0.{minor}") } else { major };
    // cargo-c sets the soname by itself.
    if std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libjitsym.so.{soversion}");
    }
    // Threads may be in the library, or come back to it when they end, after a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
