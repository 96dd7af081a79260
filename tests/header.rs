//! The checked-in header is what cbindgen makes of the sources.

use std::path::Path;

#[test]
fn header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/jitsym.h");
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["src/capi/status.rs", "src/capi/types.rs", "src/capi/mod.rs"] {
        builder = builder.with_src(root.join(source));
    }
    let mut fresh = Vec::new();
    builder.generate().expect("cbindgen").write(&mut fresh);

    if std::env::var_os("JITSYM_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &fresh).expect("write the header");
        return;
    }
    let checked_in = std::fs::read(&path).unwrap_or_default();
    assert!(
        checked_in == fresh,
        "include/jitsym.h differs from the sources; update it with\n    JITSYM_UPDATE_HEADER=1 cargo test --test header"
    );
}
