//! The headers of today against the ABI of the last release: see tests/abi/README.md.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::headers::TEXT as HEADERS;
use crate::support::{describe, root, run, scratch_dir, try_run};

/// The dump of the release whose ABI this one has to have.
fn released() -> PathBuf {
    let version = env!("CARGO_PKG_VERSION").split('.').collect::<Vec<_>>();
    root().join(format!("tests/abi/jitsym-{}.{}.xml", version[0], version[1]))
}

/// A library in C with the functions of all headers, which do nothing, and a variable of each enumeration, because functions take
/// integers in their place. From the one in Rust libabigail would learn types of Rust's as well, another lot with each compiler;
/// that it has the same functions and structs as the headers is for tests/exports.rs, tests/header.rs and tests/abi_layout.rs.
fn library(header: &str, dir: &Path) -> PathBuf {
    fs::create_dir_all(dir).expect("directory");
    // One after the other: what they include of each other is there.
    let text = header.replace("#include \"jitsym.h\"\n", "");
    fs::write(dir.join("all.h"), text).expect("header");
    let mut source = String::from("#include \"all.h\"\n");
    for function in header.split("\nJITSYM_API ").skip(1) {
        let declaration = function.split(';').next().unwrap_or_default();
        let _ = writeln!(source, "{declaration} {{ __builtin_trap(); }}");
    }
    for name in header.split("typedef enum ").skip(1).filter_map(|text| text.split(' ').next()) {
        let _ = writeln!(source, "{name} variable_of_{name};");
    }
    fs::write(dir.join("library.c"), source).expect("source");
    let library = dir.join("library.so");
    let mut compiler = Command::new("gcc");
    compiler.current_dir(dir).args(["-g", "-O0", "-shared", "-fPIC", "-Wl,-soname,libjitsym.so.0.1", "library.c"]);
    run(compiler.arg("-o").arg(&library));
    library
}

fn dump(library: &Path, file: &Path) {
    let mut abidw = Command::new("abidw");
    abidw.args(["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--no-architecture", "--out-file"]);
    run(abidw.arg(file).arg(library));
}

/// Structs that grow at their end: `struct_size`, or the size of an element, says with which version a caller was compiled.
const GROWING: [&str; 10] =
    ["options", "code", "line", "inline", "unwind", "unwind_row", "move_target", "region_options", "region", "stats"];

/// The header without the fields that structs have got at their ends since.
fn as_far_as_released(header: &str) -> String {
    let dump = fs::read_to_string(released()).expect("dump of the last release");
    let mut header = header.to_owned();
    for name in GROWING.map(|name| format!("jitsym_{name}")) {
        let (_, class) = dump.split_once(&format!("<class-decl name='{name}' ")).expect("struct in the dump");
        let (class, _) = class.split_once("</class-decl>").expect("end of the struct");
        let (_, last) = class.rsplit_once("<var-decl name='").expect("fields");
        let (last, _) = last.split_once('\'').expect("name of a field");
        let end = header.find(&format!("}} {name};")).expect("end of the struct");
        let start = header[..end].rfind(&format!("struct {name} {{")).expect("start of the struct");
        // A field that is gone stays so, for abidiff to find.
        let known = [" ", "*"].map(|before| format!("{before}{last}; "));
        if let Some(at) = known.iter().find_map(|field| header[start..end].find(field)) {
            header.replace_range(start + at + last.len() + 2..end, "\n");
        }
    }
    header
}

/// Compares a header with the released one.
fn compare(header: &str, dir: &Path) -> Output {
    let library = library(&as_far_as_released(header), dir);
    let mut abidiff = Command::new("abidiff");
    try_run(abidiff.args(["--no-added-syms", "--no-architecture"]).arg(released()).arg(library))
}

#[test]
fn header_has_the_abi_of_the_last_release() {
    let dir = scratch_dir("today");
    if std::env::var_os("JITSYM_UPDATE_ABI").is_some() {
        dump(&library(HEADERS, &dir), &released());
    }
    let output = compare(HEADERS, &dir);
    assert!(
        output.status.success(),
        "programs that were compiled with the last release would not run with this one; see tests/abi/README.md\n{}",
        describe(&Command::new("abidiff"), &output)
    );
}

/// What breaks programs is noticed, and what does not is let be.
#[test]
fn changes_are_told_apart() {
    let function = HEADERS.find("JITSYM_API jitsym_status jitsym_move(").expect("jitsym_move");
    let end = function + HEADERS[function..].find(");\n").expect("its end") + 3;
    let without_move = format!("{}{}", &HEADERS[..function], &HEADERS[end..]);
    let one_more = format!("{}{}", &HEADERS[..end], HEADERS[function..].replacen("jitsym_move(", "jitsym_new(", 1));
    let longer = |name: &str, member: &str| {
        let end = format!("}} {name};");
        HEADERS.replacen(&end, &format!("  {member} /* New. */\n{end}"), 1)
    };
    let cases = [
        ("function removed", without_move, false),
        ("function added", one_more, true),
        ("argument", HEADERS.replacen("uint32_t timeout_ms);", "uint64_t timeout_ms);", 1), false),
        ("field type", HEADERS.replacen("uint32_t max_wait_ms;", "uint16_t max_wait_ms;", 1), false),
        ("field moved", HEADERS.replacen("uint64_t addr;", "uint32_t gap;\n  uint64_t addr;", 1), false),
        ("field at the end", longer("jitsym_code", "uint64_t fresh;"), true),
        ("struct without a size", longer("jitsym_saved_register", "uint64_t fresh;"), false),
        ("enumerator changed", HEADERS.replacen("JITSYM_SINK_MAP = 1,", "JITSYM_SINK_MAP = 8,", 1), false),
        ("enumerator removed", HEADERS.replacen("  JITSYM_SINK_MAP = 1,", "", 1), false),
        ("enumerator added", longer("jitsym_sink", "JITSYM_SINK_NEW = 8,"), true),
        ("status added", longer("jitsym_status", "JITSYM_ERR_NEW = 99,"), true),
    ];
    let dir = scratch_dir("changes");
    for (what, header, harmless) in cases {
        assert_ne!(header, HEADERS, "{what}: the headers are as they were");
        let output = compare(&header, &dir);
        assert_eq!(output.status.success(), harmless, "{what}\n{}", describe(&Command::new("abidiff"), &output));
    }
}
