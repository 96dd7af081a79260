//! Reports the data that a running process publishes in its spool: sinks, counters, files and its last failure.

use std::path::Path;

use super::{size, Rank, Report};
use crate::text::{count, printable};
use jitsym::Said;

/// Counters of losses, with the noun for the counted items and the consequence.
const LOSSES: &[(&str, &str, &str)] = &[
    ("dropped", "record", "dropped, because the writer could not keep up: code has no name"),
    ("jitdump_lost", "record", "not written to the jitdump, for want of room or because a fork came meanwhile"),
    ("map_omitted", "live entry", "left out of the perf map, for want of room"),
    ("unreadable", "record", "written without code, because its bytes could not be read"),
    ("region_left_out", "table", "left out of the files of regions, for want of room"),
];
/// Values that are reported in other lines.
const TOLD: &[&str] =
    &["sinks_running", "sinks_failed", "registered", "live", "calls_refused", "region_code", "memory", "memory_held"];

/// Reads the data that the process publishes in the spool at this path. The path is relative to `root`, the root directory of
/// the process. Returns whether a sink runs.
pub fn look(path: &str, root: &Path, pids: [u32; 2], again: &str, report: &mut Report) -> bool {
    let here = root.join(path.trim_start_matches('/'));
    let said = match jitsym::read_spool(&here) {
        Ok(said) if pids.contains(&said.pid) => said,
        Ok(said) => {
            report.note(format!("{path} is the spool of process {}", said.pid));
            return false;
        }
        Err(error) => {
            report.note(format!("its counters cannot be read: {path}: {error}"));
            return false;
        }
    };
    tell(&said, again, report)
}

fn tell(said: &Said, again: &str, report: &mut Report) -> bool {
    let value = |name: &str| said.value(name);
    let sinks = |name: &str| jitsym::sink_words(value(name) as u32);
    let running = sinks("sinks_running");
    match &running {
        Some(running) => report.good(format!("sinks that run: {running}")),
        None => report.note("no sink runs"),
    }
    let registered = value("registered");
    let line = format!(
        "{} of code registered, {} live, {} in regions; {} of memory for records",
        count(registered, "piece"),
        value("live"),
        value("region_code"),
        size(value("memory_held"))
    );
    let refused = value("calls_refused");
    if registered + value("inherited") == 0 {
        report.note(if refused > 0 { "no code registered" } else { "no code registered yet" });
    } else {
        report.good(line);
    }
    let failure = printable(said.failure.as_bytes());
    if let Some(failed) = sinks("sinks_failed") {
        report.cause(
            format!("sinks that failed: {failed}"),
            Rank::Files,
            format!("the sink {failed} cannot write: {failure}"),
            format!("JITSYM_DEBUG=1 {again}"),
        );
    } else if said.failure.contains("is not adopted") {
        report.cause(
            failure.to_string(),
            Rank::Quality,
            failure.to_string(),
            format!("JITSYM=on JITSYM_ADOPT=0 {again}"),
        );
    } else if !said.failure.is_empty() {
        report.note(format!("last failure: {failure}"));
    }
    if refused > 0 {
        let calls = format!("{} refused", were(refused, "call"));
        report.cause(
            calls.clone(),
            Rank::Quality,
            format!("{calls} because of what the program passed: run it under doctor, which says what was wrong"),
            "jitsym doctor -- COMMAND",
        );
    }
    for (name, what, lost) in LOSSES {
        let lost_now = value(name);
        if lost_now > 0 {
            let text = format!("{} {lost}", were(lost_now, what));
            report.cause(text.clone(), Rank::Quality, text, format!("JITSYM_DEBUG=1 {again}"));
        }
    }
    let is_told = |name: &str| TOLD.contains(&name) || LOSSES.iter().any(|(loss, ..)| *loss == name);
    let others = said.values.iter().filter(|(name, value)| *value > 0 && !is_told(name));
    let others: Vec<String> = others.map(|(name, value)| format!("{name} {value}")).collect();
    if !others.is_empty() {
        report.good(format!("counters: {}", others.join(", ")));
    }
    running.is_some()
}

/// `1 call was`, `2 calls were`.
fn were(number: u64, what: &str) -> String {
    let (plural, verb) = if number == 1 { (what.to_owned(), "was") } else { (plural(what), "were") };
    format!("{number} {plural} {verb}")
}

fn plural(what: &str) -> String {
    what.strip_suffix('y').map_or_else(|| format!("{what}s"), |start| format!("{start}ies"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(values: &[(&str, u64)], failure: &str) -> (String, Vec<String>) {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let said = Said { pid: 7, values, failure: failure.into() };
        let mut report = Report::default();
        tell(&said, "jitsym record -- COMMAND", &mut report);
        let mut text = Vec::new();
        report.print(&mut text).unwrap();
        (String::from_utf8(text).unwrap(), report.causes().iter().map(|cause| cause.text.clone()).collect())
    }

    #[test]
    fn counters_are_put_into_words() {
        let (text, causes) = told(&[("sinks_running", 3), ("registered", 3), ("live", 2), ("brand_new", 9)], "");
        assert!(causes.is_empty(), "{text}");
        for line in ["run: map jitdump\n", "3 pieces of code registered, 2 live", "brand_new 9"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn losses_are_causes() {
        let (_, causes) = told(&[("registered", 3), ("calls_refused", 1), ("map_omitted", 2)], "");
        assert!(causes[0].starts_with("1 call was refused because"), "{causes:?}");
        assert!(causes[1].starts_with("2 live entries were left out"), "{causes:?}");
        let (text, causes) = told(&[("sinks_failed", 2), ("dropped", 1)], "no \x1b room");
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert!(causes[0].starts_with("the sink jitdump cannot write: no ") && !text.contains('\x1b'), "{causes:?}");
    }
}
