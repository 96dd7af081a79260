//! `jitsym inject` on recordings of regions: the code of each epoch gets an object that begins at an address of its own, so that
//! perf 7 finds the stacks that it does not find by the files of regions.

use super::recorded::{for_tables, Recorded, TABLES};
use crate::support::fetched;

/// All names and stacks are right in perf 7 and in the installed perf after the injection. Returns the share of whole stacks that
/// perf 7 showed before, in percent.
fn right_after(scenario: &str, options: &[&str]) -> f64 {
    let mut recorded = Recorded::of(for_tables(), scenario, options, TABLES);
    recorded.read_with(Some(fetched("sid/perf")));
    let [names, stacks] = recorded.shares();
    assert!(names >= 100.0, "{names} % of the names before");
    let said = recorded.inject();
    assert!(said.contains("of regions in samples of"), "{said}");
    recorded.check();
    recorded.read_with(None);
    recorded.check();
    stacks
}

/// The control: perf 7 goes on with the tables of the code that was there before.
#[test]
fn reused() {
    let before = right_after("region-reused", &["memory=created"]);
    assert!(before < 99.0, "{before} % of the stacks before");
}

/// Groups of mappings overlap, and perf 7 reads none of two objects that overlap.
#[test]
fn windows() {
    let before = right_after("region-windows", &["memory=created"]);
    assert!(before < 99.0, "{before} % of the stacks before");
}

/// Children have the code of their parent, and code of their own in files of their own.
#[test]
fn forked() {
    right_after("region-forked", &["memory=created"]);
    right_after("region-forked", &["memory=adopted"]);
}
