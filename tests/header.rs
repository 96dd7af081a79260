//! The checked-in headers and the reference are what the sources say. Parsers of FFI libraries take the headers (cffi:
//! tests/python.rs).

use crate::support::plain_headers;
use crate::{declarations, headers, reference};
use std::path::Path;
use std::process::Command;

#[test]
fn headers_are_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = declarations::entries(root);
    let made = headers::make(root, &entries);
    let mut files = vec![("docs/reference.md".to_owned(), reference::of_headers(&made))];
    files.extend(made.into_iter().map(|header| (format!("include/{}", header.name), header.text)));
    for (file, text) in files {
        let path = root.join(&file);
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

/// Whoever opens the header that every host needs reads it to its end.
#[test]
fn headers_are_short_and_plain() {
    let lines = include_str!("../include/jitsym.h").lines().count();
    assert!(lines <= 450, "{lines} lines");
    for line in headers::TEXT.lines() {
        assert!(line.len() <= 120, "{line}");
        let text = line.trim_start_matches(['/', '*', ' ']);
        assert!(!text.trim_start_matches('#').starts_with(' ') || !text.starts_with('#'), "a heading of Rust: {line}");
    }
}

/// A program in LuaJIT that has nothing but the header, or all of them.
#[test]
fn the_headers_load_in_luajit() {
    for (what, names) in [("one", &headers::NAMES[..1]), ("all", &headers::NAMES)] {
        load_in_luajit(what, names);
    }
}

fn load_in_luajit(what: &str, names: &[&str]) {
    let dir = crate::support::fresh_dir(format!("luajit-{what}"));
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
    luajit.args(["-e", script]).stdin(std::fs::File::open(plain_headers(names)).expect("header"));
    let lib = crate::support::artifacts().shared_dir.join("libjitsym.so");
    crate::support::run(luajit.env("JITSYM_LIB", lib).env("JITSYM_DIR", &dir));
    assert_eq!(crate::support::checker::assert_all_sound(&dir, &[]), 2);
}
