//! The report as JSON.
//!
//! The JSON is one object. `parts` are the parts of the report, each with a `title` and `lines`, which have a `mark` and a
//! `text`. `shares` are those of a recording, or null. `causes` has the most important cause first. `type` is the command to
//! type next.

use std::io::{self, Write};

use super::{Mark, Report};
use crate::check::report::json_string;

/// A string, quotes included.
pub fn string(text: &str) -> String {
    json_string(text)
}

/// Writes the object. `more` are further fields of the caller, each followed by a comma.
pub fn write(report: &Report, more: &str, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{{{more}\"parts\":[")?;
    let (mut parts, mut lines) = (0, 0);
    for (mark, text) in &report.lines {
        let text = json_string(text);
        let Some(mark) = mark else {
            write!(out, "{}{{\"title\":{text},\"lines\":[", if parts > 0 { "]},\n" } else { "" })?;
            (parts, lines) = (parts + 1, 0);
            continue;
        };
        let mark = match mark {
            Mark::Good => "ok",
            Mark::Note => "note",
            Mark::Bad => "wrong",
        };
        write!(out, "{}\n{{\"mark\":\"{mark}\",\"text\":{text}}}", if lines > 0 { "," } else { "" })?;
        lines += 1;
    }
    write!(out, "{}],\n\"shares\":", if parts > 0 { "]}" } else { "" })?;
    match report.shares {
        None => write!(out, "null")?,
        Some(shares) => {
            let whole = shares.whole.map_or("null".into(), |whole| whole.to_string());
            let (samples, compiled, named) = (shares.samples, shares.compiled, shares.named);
            write!(out, "{{\"samples\":{samples},\"compiled\":{compiled},\"named\":{named},\"whole\":{whole}}}")?;
        }
    }
    let list =
        |texts: &mut dyn Iterator<Item = &String>| texts.map(|text| json_string(text)).collect::<Vec<_>>().join(",");
    let causes = report.causes();
    write!(out, ",\n\"causes\":[{}]", list(&mut causes.iter().map(|cause| &cause.text)))?;
    write!(out, ",\n\"notes\":[{}]", list(&mut report.asides.iter()))?;
    writeln!(out, ",\n\"type\":{}}}", report.next().map_or("null".into(), |next| json_string(&next)))
}
