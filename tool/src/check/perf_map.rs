//! Checks the lines of a perf map.

use jitsym::format::perf_map::{raw_lines, RawLine};

use super::rules::{self, Rule};
use super::{Finding, Place, Report, Summary};
use crate::text::{has_control, shortened};

/// The size of parca's line buffer, newline included.
const LINE_MAX: usize = 4096;
/// The length at which ddprof cuts names.
const NAME_CUT: usize = 300;
/// The minimum length of a name. perf drops lines with shorter names.
const NAME_MIN: usize = 3;

pub(super) fn check(file: &[u8], report: &mut dyn Report) {
    let mut map = Map { report, entries: Vec::new() };
    let mut done = 0;
    let mut number = 0;
    for line in raw_lines(file) {
        number += 1;
        map.line(number, &line);
        done += line.bytes.len() as u64 + 1;
        if !map.report.progress(done) {
            return;
        }
    }
    if number == 0 {
        map.found(&rules::MAP_EMPTY, Place::File, "", "the file is empty".into());
    }
    map.report.summary(Summary { pieces: map.entries.len() as u64, ..Summary::default() });
    map.overlaps();
}

struct Map<'a, 'r> {
    report: &'r mut dyn Report,
    entries: Vec<Entry<'a>>,
}

/// The address range of a line.
struct Entry<'a> {
    start: u64,
    end: u64,
    line: u64,
    text: &'a [u8],
}

impl<'a> Map<'a, '_> {
    fn found(&mut self, rule: &'static Rule, place: Place, subject: &str, text: String) {
        self.report.finding(Finding { rule, place, subject: subject.into(), text });
    }

    fn line(&mut self, number: u64, line: &RawLine<'a>) {
        let subject = shortened(line.bytes).to_string();
        let mut found = |rule, text: String| self.found(rule, Place::Line(number), &subject, text);
        if line.bytes.len() >= LINE_MAX {
            found(&rules::MAP_LINE_LONG, format!("it has {} bytes", line.bytes.len()));
        }
        if let Err(error) = std::str::from_utf8(line.bytes) {
            found(&rules::MAP_NOT_UTF8, format!("byte {} of the line is not UTF-8", error.valid_up_to()));
        }
        if !line.ended {
            found(&rules::MAP_TORN, "there is no newline behind it".into());
        }
        if line.bytes.is_empty() {
            found(&rules::MAP_BLANK_LINE, "it is empty".into());
            return;
        }
        let Some(fields) = line.fields() else {
            // An incomplete line may lack a number.
            if line.ended {
                found(&rules::MAP_LINE, "it does not begin with two hexadecimal numbers".into());
            }
            return;
        };
        if fields.prefixed {
            found(&rules::MAP_0X, "a number begins with 0x".into());
        }
        if fields.upper_case {
            found(&rules::MAP_UPPER_CASE, "a number has digits in upper case".into());
        }
        if fields.start_len > 16 {
            found(&rules::MAP_ADDRESS_DIGITS, format!("the address has {} characters", fields.start_len));
        }
        if fields.size_len > 8 {
            found(&rules::MAP_SIZE_DIGITS, format!("the size has {} characters", fields.size_len));
        }
        if !fields.plain_separators {
            found(&rules::MAP_SEPARATOR, "there is not one space between the fields".into());
        }
        if fields.start == 0 {
            found(&rules::MAP_ADDRESS_ZERO, "the address is 0".into());
        }
        if fields.size == 0 {
            found(&rules::MAP_SIZE_ZERO, "the size is 0".into());
        }
        let end = fields.start.checked_add(fields.size);
        if end.is_none() {
            found(&rules::MAP_ADDRESS_RANGE, format!("{:#x} bytes from {:#x}", fields.size, fields.start));
        }
        match fields.name {
            b"" | b"\r" if line.ended => found(&rules::MAP_NAME_MISSING, "there is nothing behind the size".into()),
            name => self.name(number, &subject, name),
        }
        if let Some(end) = end.filter(|&end| end > fields.start) {
            self.entries.push(Entry { start: fields.start, end, line: number, text: line.bytes });
        }
    }

    fn name(&mut self, number: u64, subject: &str, name: &[u8]) {
        let mut found = |rule, text: String| self.found(rule, Place::Line(number), subject, text);
        let (name, cr) = match name.strip_suffix(b"\r") {
            Some(name) => (name, true),
            None => (name, name.contains(&b'\r')),
        };
        if cr {
            found(&rules::MAP_CR, "there is a carriage return in it".into());
        }
        if let Some(at) = name.iter().position(|&byte| byte == 0) {
            found(&rules::MAP_NUL, format!("the name ends behind {at} bytes"));
        }
        if has_control(&name.iter().copied().filter(|byte| !b"\r\0".contains(byte)).collect::<Vec<u8>>()) {
            found(&rules::MAP_CONTROL, format!("the name is {}", shortened(name)));
        }
        if name.len() < NAME_MIN && !name.is_empty() {
            found(&rules::MAP_NAME_SHORT, format!("the name has {} bytes", name.len()));
        }
        if name.starts_with(b"stub<") {
            found(&rules::MAP_NAME_STUB, "the name begins with `stub<`".into());
        }
        if name.len() > NAME_CUT {
            found(&rules::MAP_NAME_CUT, format!("the name has {} bytes", name.len()));
        } else if name.contains(&b'\t') {
            found(&rules::MAP_NAME_CUT, "there is a tab in the name".into());
        }
    }

    fn overlaps(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by_key(|entry| (entry.start, entry.line));
        // The entry with the highest end so far.
        let mut far: Option<&Entry> = None;
        for entry in &entries {
            if let Some(other) = far.filter(|other| other.end > entry.start) {
                let (early, late) = if other.line < entry.line { (other, entry) } else { (entry, other) };
                let (subject, place) = (shortened(late.text).to_string(), Place::Line(late.line));
                let same =
                    (early.start, early.end) == (late.start, late.end) && name_of(early.text) == name_of(late.text);
                let (rule, verb) = if same { (&rules::MAP_DUPLICATE, "is") } else { (&rules::MAP_OVERLAP, "overlaps") };
                let text = format!("it {verb} that in line {}: {}", early.line, shortened(early.text));
                self.found(rule, place, &subject, text);
            }
            if far.is_none_or(|far| entry.end > far.end) {
                far = Some(entry);
            }
        }
    }
}

fn name_of(line: &[u8]) -> Option<&[u8]> {
    RawLine { bytes: line, ended: true }.fields().map(|fields| fields.name)
}
