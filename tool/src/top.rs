//! Shows which code a living process registers, how fast, and what it loses. The sources are the counters in its spools and
//! the end of its perf map.

use std::fmt::{self, Write};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jitsym::format::perf_map;
use jitsym::Said;

use crate::doctor::process::Seen;
use crate::open;
use crate::text::printable;

/// Counters that are shown first, even while they are 0. Other counters are shown only if they are not 0.
const FIRST: &[&str] =
    &["registered", "unregistered", "overwritten", "live", "region_code", "calls_refused", "dropped", "write_errors"];
/// Values that are not added up.
const SINKS: [(&str, &str); 2] = [("sinks_running", "sinks that run"), ("sinks_failed", "sinks that failed")];
/// The number of lines of the map that are shown.
const LINES: usize = 8;
/// The maximum number of bytes of these lines.
const TAIL: u64 = 16 << 10;

/// The state of a process at one time.
pub struct Look {
    said: Vec<Said>,
    /// The names in the last lines of the process's map.
    names: Vec<String>,
}

impl Look {
    /// Reads the state of a process. `proc` is the directory of the kernel's process files.
    pub fn at(pid: u32, proc: &Path) -> io::Result<Look> {
        let dir = proc.join(pid.to_string());
        let seen = Seen::read(&dir)?;
        // The paths are relative to the process's own root.
        let here = |path: &String| -> PathBuf { dir.join("root").join(path.trim_start_matches('/')) };
        let said = seen.spools.iter().filter_map(|path| jitsym::read_spool(&here(path)).ok()).collect();
        let names = seen.maps.iter().filter_map(|path| last_names(&here(path), pid).ok()).flatten().collect();
        Ok(Look { said, names })
    }

    /// Whether the process publishes data about itself.
    pub fn has_said(&self) -> bool {
        !self.said.is_empty()
    }

    /// Formats the state. `before` is an earlier state and its age.
    pub fn show(&self, before: Option<(&Look, Duration)>) -> String {
        let mut text = String::new();
        for (number, said) in self.said.iter().enumerate() {
            let earlier = before.and_then(|(look, age)| Some((look.said.get(number)?, age)));
            // Writing to a string does not fail.
            let _ = show_said(&mut text, said, earlier);
        }
        if !self.names.is_empty() {
            text += "the last lines of the map\n";
            self.names.iter().for_each(|name| text += &format!("    {name}\n"));
        }
        text
    }
}

fn show_said(text: &mut String, said: &Said, before: Option<(&Said, Duration)>) -> fmt::Result {
    for (name, words) in SINKS {
        match jitsym::sink_words(said.value(name) as u32) {
            Some(sinks) => writeln!(text, "{words}: {sinks}")?,
            None if name == "sinks_running" => writeln!(text, "no sink runs")?,
            None => {}
        }
    }
    if !said.failure.is_empty() {
        writeln!(text, "last failure: {}", printable(said.failure.as_bytes()))?;
    }
    let is_shown = |(name, value): &&(String, u64)| {
        *value > 0 && !FIRST.contains(&&**name) && SINKS.iter().all(|(other, _)| name != other)
    };
    let others = said.values.iter().filter(is_shown).map(|(name, _)| &**name);
    for name in FIRST.iter().copied().chain(others) {
        let value = said.value(name);
        write!(text, "{name:20}{value:14}")?;
        if let Some((before, age)) = before {
            let change = value as f64 - before.value(name) as f64;
            if change != 0.0 {
                write!(text, "{:+14.0} a second", change / age.as_secs_f64())?;
            }
        }
        text.push('\n');
    }
    Ok(())
}

/// The names in the last lines of a map.
fn last_names(path: &Path, pid: u32) -> io::Result<Vec<String>> {
    let file = open::of_process(path, pid)?;
    let len = file.metadata()?.len();
    let start = len.saturating_sub(TAIL);
    let mut tail = vec![0; (len - start) as usize];
    file.read_exact_at(&mut tail, start)?;
    // The first line may be incomplete.
    let at = if start == 0 { 0 } else { tail.iter().position(|&byte| byte == b'\n').map_or(tail.len(), |at| at + 1) };
    let names: Vec<String> = perf_map::lines(&tail[at..]).map(|(.., name)| printable(name).to_string()).collect();
    Ok(names[names.len().saturating_sub(LINES)..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(values: &[(&str, u64)], failure: &str) -> Look {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        Look { said: vec![Said { pid: 7, values, failure: failure.into() }], names: Vec::new() }
    }

    #[test]
    fn changes_are_shown_for_a_second() {
        let before = said(&[("sinks_running", 1), ("registered", 100), ("live", 50), ("memory", 4096)], "");
        let after = said(&[("sinks_running", 1), ("registered", 300), ("live", 40), ("memory", 4096)], "no \x1b room");
        let text = after.show(Some((&before, Duration::from_secs(2))));
        let has = |words: &[&str]| text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()));
        assert!(has(&["registered", "300", "+100", "a", "second"]), "{text}");
        assert!(has(&["live", "40", "-5", "a", "second"]), "{text}");
        assert!(has(&["memory", "4096"]) && has(&["dropped", "0"]), "{text}");
        assert!(has(&["sinks", "that", "run:", "map"]) && !text.contains("sinks_running"), "{text}");
        assert!(text.contains("last failure: no \\u{1b} room\n"), "{text}");
        assert!(!after.show(None).contains("a second"));
    }
}
