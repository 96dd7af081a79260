//! Readers and checker of perf maps.
#![no_main]

use jitsym_tool::check::{check, Facts, Finding, Kind};
use jitsym::format::perf_map::{lines, raw_lines};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let facts = Facts { path: Some("/tmp/perf-1.map".into()), mode: Some(0o644), ..Facts::default() };
    let mut findings: Vec<Finding> = Vec::new();
    let kind = check(data, &facts, &mut findings);
    // Where nothing is amiss, the strict reader, which recovery uses, and the lenient one agree.
    let strict: Vec<_> = lines(data).collect();
    if kind == Kind::PerfMap && findings.is_empty() {
        let fields = raw_lines(data).map(|line| line.fields().expect("a line in order"));
        assert!(fields.map(|fields| (fields.start, fields.size, fields.name)).eq(strict));
    }
});
