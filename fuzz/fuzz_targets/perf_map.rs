//! Readers and checker of perf maps.
#![no_main]

use jitsym::check::{check, Facts, Finding, Severity};
use jitsym::format::perf_map::{lines, push_line, Dialect};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let facts = Facts { path: Some("/tmp/perf-1.map".into()), mode: Some(0o644) };
    let mut findings: Vec<Finding> = Vec::new();
    check(data, &facts, &mut findings);
    // What is read with nothing amiss is written as it was.
    let amiss = findings.iter().any(|found| found.rule.severity > Severity::Note);
    if !amiss && findings.is_empty() && !data.starts_with(b"JiTD") && !data.starts_with(b"DTiJ") {
        let mut again = Vec::new();
        for (start, size, name) in lines(data) {
            push_line(&mut again, Dialect::Perf, start, size, name);
        }
        let plain = data.split(|&byte| byte == b'\n').all(|line| !line.starts_with(b"0") && !line.windows(2).any(|two| two == b" 0"));
        assert!(!plain || again == data, "{:?}", String::from_utf8_lossy(data));
    }
});
