//! What the program says, without what differs between machines and runs.

use std::path::Path;

use crate::support::root;
use crate::toy::toy;

/// The lines after the last empty one, without what differs between two runs.
pub fn last_lines(text: &str, dir: &Path) -> String {
    let (_, last) = text.trim_end().rsplit_once("\n\n").expect("an empty line");
    let mut plain = String::new();
    for line in last.lines() {
        // The real command is a program of the test's, with its arguments.
        let line =
            [" -- /", "JITSYM_DEBUG=1 /"].iter().fold(line.to_owned(), |line, start| match line.split_once(start) {
                Some((before, rest)) => {
                    let (_, name) = rest.split(' ').next().unwrap_or_default().rsplit_once('/').unwrap_or_default();
                    format!("{before}{} {name} ...", start.trim_end_matches('/').trim_end())
                }
                None => line,
            });
        let line = without_build_ids(&line.replace(&dir.display().to_string(), "DIR"));
        // Which function it is depends on the samples.
        let line = line.split_once("end at ").map_or(line.clone(), |(start, _)| format!("{start}end at FUNCTION"));
        let line = line.split_once("memory at 0x").map_or(line.clone(), |(start, rest)| {
            format!("{start}memory at ADDRESS{}", rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
        });
        let line = ["halve", "collatz"].iter().fold(line, |line, name| line.replace(name, "FUNCTION"));
        let line = without_addresses(&line);
        let mut number = String::new();
        for c in line.chars().chain(['\n']) {
            if c.is_ascii_digit() {
                number.push(c);
            } else {
                // Numbers of processes and objects, and of samples.
                let is_any = number.len() > 2 || !number.is_empty() && line.contains("samples in compiled code");
                plain += if is_any { "N" } else { &number };
                number.clear();
                plain.push(c);
            }
        }
    }
    // The directory of the jitdump is the test's.
    plain.trim_end().to_owned()
}

/// Long numbers after `0x` are addresses, or places in files.
fn without_addresses(line: &str) -> String {
    let mut parts = line.split("0x");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
        plain += &if digits > 2 { format!("ADDRESS{}", &part[digits..]) } else { format!("0x{part}") };
    }
    plain
}

/// The names of objects have build-ids.
fn without_build_ids(text: &str) -> String {
    let mut parts = text.split("/jitcode-");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked += "/jitcode-";
        masked += &part.split_once(".so").map_or(part.into(), |(_, rest)| format!("N-BUILDID.so{rest}"));
    }
    masked
}

/// A screen without what differs between machines and runs.
pub fn masked(text: &str, dir: &Path) -> String {
    let mut text = without_build_ids(&text.replace(&dir.display().to_string(), "DIR"));
    for path in [toy().to_owned(), root().join("examples/hello.toy")] {
        let name = path.file_name().expect("its name").to_string_lossy();
        text = text.replace(&path.display().to_string(), &name);
    }
    let mut masked = String::new();
    for line in text.lines() {
        let line = match line.trim_start().split_once(' ') {
            Some(("ok", rest)) if rest.trim_start().starts_with("perf ") && rest.contains("goes through stacks") => {
                "  ok     perf N (PATH): HOW IT goes through stacks".into()
            }
            Some(("ok", rest)) if rest.trim_start().starts_with("counters: ") => "  ok     counters: ...".into(),
            _ => line.replace("perf_event_paranoid is 2", "perf_event_paranoid is N"),
        };
        // Numbers, but not those of perf's versions in a verdict.
        let keeps = line.starts_with("  perf ");
        let mut number = String::new();
        for c in line.chars().chain(['\n']) {
            if !keeps && (c.is_ascii_digit() || c == '.' && !number.is_empty()) {
                number.push(c);
            } else {
                if !number.is_empty() {
                    masked += if number.ends_with('.') { "N." } else { "N" };
                    number.clear();
                }
                masked.push(c);
            }
        }
    }
    ["KiB", "MiB", "TiB"].iter().fold(masked, |text, unit| text.replace(&format!("N {unit}"), "N GiB"))
}
