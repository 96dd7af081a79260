//! Checks whether readers find a file: its name, directory and mode.

use std::path::{Path, PathBuf};

use jitsym::format::file_names::{parse, FileKind};
use jitsym::format::jitdump::raw::RawHeader;

use super::{rules, Finding, Kind, Place, Report, Rule};

/// Facts about a file in addition to its bytes. Unknown facts are not checked.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The absolute path, without links.
    pub path: Option<PathBuf>,
    /// The permissions.
    pub mode: Option<u32>,
    /// Whether the file was copied or renamed. The name and path of such a file do not show whether readers have found the
    /// file.
    pub copied: bool,
}

/// The only directory in which perf and other readers look for maps.
const TMP: &str = "/tmp";

pub(super) fn check(kind: Kind, file: &[u8], facts: &Facts, report: &mut dyn Report) {
    let mut found = |rule: &'static Rule, text: String| {
        report.finding(Finding { rule, place: Place::File, subject: String::new(), text });
    };
    // Readers get the name of a region's file from the mapping.
    if let Some(path) = facts.path.as_ref().filter(|_| !facts.copied && kind != Kind::Region) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match (parse(&name), kind) {
            (Some((pid, FileKind::Jitdump { .. })), Kind::Jitdump) => {
                if let Some(header) = RawHeader::read(file).filter(|header| header.pid != pid) {
                    found(&rules::DUMP_NAME_PID, format!("the header is of process {}", header.pid));
                }
            }
            (Some((_, FileKind::PerfMap)), Kind::PerfMap) => {}
            _ => {
                let rule = if kind == Kind::Jitdump { &rules::DUMP_NAME } else { &rules::MAP_NAME };
                found(rule, format!("the name is {name:?}"));
            }
        }
        if path.parent() != Some(Path::new(TMP)) {
            let rule = if kind == Kind::Jitdump { &rules::DUMP_DIR } else { &rules::MAP_DIR };
            found(rule, format!("it lies in {:?}", path.parent().unwrap_or(path)));
        }
    }
    if let Some(mode) = facts.mode.filter(|mode| mode & 0o004 == 0) {
        found(&rules::FILE_MODE, format!("the mode is {:03o}", mode & 0o777));
    }
}
