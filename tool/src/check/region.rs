//! Checks the names, line tables and unwind tables in the file of a region.

use super::rules::{self, Rule};
use super::{Finding, Place, Report, Summary};
use crate::region::Region;
use crate::text::{has_control, is_mangled, is_type_code, shortened};

pub(super) fn check(file: &[u8], report: &mut dyn Report) {
    let region = match Region::read(file) {
        Ok(region) => region,
        Err(error) => {
            report.finding(Finding {
                rule: &rules::HEADER_TORN,
                place: Place::File,
                subject: String::new(),
                text: error.to_string(),
            });
            return;
        }
    };
    let mut starts = Vec::new();
    let mut last_row =
        |_: &crate::tables::Fde, row: &crate::tables::Row| starts.push((row.start_address(), row.end_address()));
    let decoded = region.each_row(&mut last_row);
    starts.sort_unstable();
    let mut summary = Summary::default();
    for function in &region.functions {
        let name = shortened(function.name).to_string();
        let mut found = |rule: &'static Rule, text: String| {
            let (place, subject) = (Place::Offset(function.addr), format!("\"{name}\""));
            report.finding(Finding { rule, place, subject, text });
        };
        if function.name.is_empty() {
            found(&rules::NAME_EMPTY, "the name is empty".into());
        }
        if function.size == 0 {
            found(&rules::CODE_SIZE_ZERO, "its size is 0".into());
        }
        if std::str::from_utf8(function.name).is_err() {
            found(&rules::NAME_NOT_UTF8, format!("the name is {name}"));
        }
        if has_control(function.name) {
            found(&rules::NAME_CONTROL, format!("the name is {name}"));
        }
        if is_mangled(function.name) {
            found(&rules::NAME_DEMANGLED, format!("the name is {name}"));
        }
        if is_type_code(function.name) {
            found(&rules::NAME_TYPE_CODE, format!("the name is {name}"));
        }
        let lines = region.lines_of(function);
        if lines.iter().any(|(_, line)| line.as_ref().is_some_and(|(_, line, _)| *line == 0)) {
            found(&rules::DEBUG_LINE_ZERO, "a row is for line 0".into());
        }
        summary.pieces += 1;
        summary.with_lines += u64::from(!lines.is_empty());
        // The last row that begins at or before the start of the function.
        let row = starts.partition_point(|(start, _)| *start <= function.addr).checked_sub(1);
        let covered = row.and_then(|row| starts.get(row)).is_some_and(|(_, end)| *end > function.addr);
        summary.with_tables += u64::from(covered);
    }
    summary.with_mapped = summary.with_tables;
    if let Err(error) = decoded {
        report.finding(Finding {
            rule: &rules::UNWIND_CFI,
            place: Place::File,
            subject: ".eh_frame".into(),
            text: error,
        });
    }
    if region.functions.is_empty() {
        report.finding(Finding {
            rule: &rules::NO_CODE,
            place: Place::File,
            subject: String::new(),
            text: "there is no symbol of a function".into(),
        });
    }
    let without = summary.pieces - summary.with_tables;
    if without > 0 {
        let text = format!("{without} of {} pieces of code have no tables", summary.pieces);
        report.finding(Finding { rule: &rules::UNWIND_MISSING, place: Place::File, subject: String::new(), text });
    }
    report.summary(summary);
}
