//! The checked-in header is what cbindgen makes of the sources, and the reference what the header says.
//! Parsers of FFI libraries take it (cffi: tests/python.rs).

use crate::reference;
use std::path::Path;
use std::process::Command;

#[test]
fn header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in ["src/capi/status.rs", "src/capi/types/mod.rs", "src/capi/mod.rs"] {
        builder = builder.with_src(root.join(source));
    }
    let mut fresh = Vec::new();
    builder.generate().expect("cbindgen").write(&mut fresh);

    let fresh = String::from_utf8(fresh).expect("UTF-8");
    for (file, text) in [("docs/reference.md", reference::from_header(&fresh)), ("include/jitsym.h", fresh)] {
        let path = root.join(file);
        if std::env::var_os("JITSYM_UPDATE_HEADER").is_some() {
            std::fs::write(&path, &text).expect("write the file");
            continue;
        }
        assert!(
            std::fs::read_to_string(&path).unwrap_or_default() == text,
            "{file} differs from the sources; update it with\n    JITSYM_UPDATE_HEADER=1 cargo test --test tests header"
        );
    }
}

/// A program in LuaJIT that has nothing but the header.
#[test]
fn the_header_loads_in_luajit() {
    let dir = crate::support::fresh_dir("luajit");
    let script = r#"
        local ffi = require "ffi"
        ffi.cdef(io.read "*a")
        local lib = ffi.load(os.getenv "JITSYM_LIB")
        local out = ffi.new "jitsym *[1]"
        assert(lib.jitsym_init(nil, out) == lib.JITSYM_OK)
        local code = ffi.new("jitsym_code", { struct_size = ffi.sizeof "jitsym_code", addr = 0x7e0000000000ULL, size = 64 })
        local name, bytes = "by_luajit", ffi.new "char[64]"
        code.name, code.bytes = name, bytes
        assert(lib.jitsym_register(out[0], code, nil) == lib.JITSYM_OK)
        assert(lib.jitsym_close(out[0]) == lib.JITSYM_OK)
    "#;
    let mut luajit = Command::new("luajit");
    luajit.args(["-e", script]).stdin(std::fs::File::open(crate::support::plain_header()).expect("header"));
    let lib = crate::support::artifacts().shared_dir.join("libjitsym.so");
    crate::support::run(luajit.env("JITSYM_LIB", lib).env("JITSYM_DIR", &dir));
    assert_eq!(crate::support::checker::assert_all_sound(&dir, &[]), 2);
}
