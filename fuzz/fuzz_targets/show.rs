//! `jitsym dump` and `jitsym stat`.
#![no_main]

use jitsym_tool::check::Facts;
use jitsym_tool::show::{dump, stat, Dump, Look};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let facts = Facts::default();
    let mut progress = |_| {};
    let mut how = Dump { disassembler: None, name: None, progress: &mut progress };
    let mut out = Vec::new();
    let _ = dump(data, &facts, &mut how, &mut out);
    for terminal in [false, true] {
        let look = Look { width: 80, terminal };
        let _ = stat(data, &facts, look, 10, &mut |_| {}, &mut out);
    }
    // Nothing that acts on a terminal comes out of a file.
    assert!(std::str::from_utf8(&out).is_ok());
});
