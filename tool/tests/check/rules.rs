//! Each rule is found where it is broken, and only there.

use std::collections::BTreeSet;

use jitsym_tool::check::rules::{self, ALL};
use jitsym_tool::check::{check, Facts, Finding, Severity};

use crate::cases::{cases, Case};

fn findings(file: &[u8], facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    check(file, facts, &mut findings);
    findings
}

/// The rules of all errors and warnings.
fn serious(findings: &[Finding]) -> BTreeSet<&'static str> {
    findings.iter().filter(|found| found.rule.severity > Severity::Note).map(|found| found.rule.id).collect()
}

#[test]
fn each_rule() {
    let mut wrong = Vec::new();
    for (number, Case { rule, also, bad, good, at: [bad_at, good_at] }) in cases().iter().enumerate() {
        let what = format!("case {number}, {rule}");
        let known = rules::find(rule).unwrap_or_else(|| panic!("{what}: there is no such rule"));
        let also: BTreeSet<&str> = also.iter().copied().collect();
        let (bad, good) = (findings(bad, bad_at), findings(good, good_at));
        if !bad.iter().any(|found| found.rule == known) {
            wrong.push(format!("{what} is not found in {bad:#?}"));
        }
        if good.iter().any(|found| found.rule == known) {
            wrong.push(format!("{what} is found in {good:#?}"));
        }
        let mut expected = also.clone();
        if known.severity > Severity::Note {
            expected.insert(known.id);
        }
        if serious(&bad) != expected {
            wrong.push(format!("{what}: {expected:?} are expected: {bad:#?}"));
        }
        if !serious(&good).is_subset(&also) {
            wrong.push(format!("{what}: the other file is not right: {good:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_has_a_case() {
    let tested: BTreeSet<&str> = cases().iter().map(|case| case.rule).collect();
    let all: BTreeSet<&str> = ALL.iter().map(|rule| rule.id).collect();
    assert_eq!(all.len(), ALL.len(), "names are unique");
    assert_eq!(tested, all);
}

/// Names can be typed and never change; sentences end; readers are listed.
#[test]
fn rules_are_well_formed() {
    for rule in ALL {
        let id = rule.id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        assert!(id && rule.text.ends_with('.') && !rule.readers.is_empty(), "{rule:?}");
    }
    let listed: Vec<&str> = include_str!("rules.txt").lines().collect();
    let all: Vec<String> = ALL.iter().map(|rule| format!("{} {}", rule.id, rule.severity.name())).collect();
    assert_eq!(all, listed, "names and severities differ from tool/tests/check/rules.txt; a name never changes");
}
