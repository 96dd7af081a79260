//! Determines the kind of a file by its first bytes, or otherwise by its name.

use jitsym::format::file_names::{parse, FileKind};
use jitsym::format::jitdump::raw::RawHeader;
use jitsym::format::perf_map::raw_lines;

use crate::check::Facts;
use crate::region::Region;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `jit-PID.dump`
    Jitdump,
    /// `perf-PID.map`
    PerfMap,
    /// `jit-PID-N.so`, or another ELF file
    Region,
}

/// The first bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";

impl Kind {
    /// The kind by the first bytes, or otherwise by the name.
    pub fn of(file: &[u8], facts: &Facts) -> Kind {
        if RawHeader::has_magic(file) || (is_named(facts, "dump") && !file.starts_with(ELF)) {
            Kind::Jitdump
        } else if file.starts_with(ELF) {
            Kind::Region
        } else {
            Kind::PerfMap
        }
    }

    /// The name of the kind, as it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Jitdump => "jitdump",
            Kind::PerfMap => "perf map",
            Kind::Region => "region",
        }
    }
}

fn is_named(facts: &Facts, extension: &str) -> bool {
    facts.path.as_deref().and_then(|path| path.extension()).is_some_and(|end| end == extension)
}

/// Files of other formats, which are recognised by their first bytes.
const OTHERS: &[(&[u8], &str)] = &[
    (
        b"PERFILE2",
        "is a recording of perf (perf.data): `jitsym doctor` says what it has, and `jitsym check` reads the jitdump or map",
    ),
    (b"2ELIFREP", "is a recording of perf (perf.data) of the other byte order"),
    (b"jitspool", "is a spool of libjitsym: `jitsym recover` completes the files from it"),
    (b"BZh", "is compressed with bzip2; gzip and zstd can be read"),
    (b"\xfd7zXZ\0", "is compressed with xz; gzip and zstd can be read"),
    (b"PK\x03\x04", "is a zip archive"),
    (b"!<arch>\n", "is an archive (ar)"),
    (b"%PDF", "is a PDF"),
    (b"\x89PNG", "is a picture (PNG)"),
    (b"#!", "is a script"),
];

/// The number of lines that are examined.
const LINES: usize = 20;

/// The format of a file that `jitsym` does not read. `None` if `jitsym` reads the file, or if the file's name is that of a
/// kind that it reads.
pub fn other(file: &[u8], facts: &Facts) -> Option<String> {
    if let Some((_, what)) = OTHERS.iter().find(|(start, _)| file.starts_with(start)) {
        return Some((*what).to_owned());
    }
    let name = facts.path.as_deref().and_then(|path| path.file_name()?.to_str()).unwrap_or_default();
    if Kind::of(file, facts) == Kind::Region && !matches!(parse(name), Some((_, FileKind::Region { .. }))) {
        return match Region::read(file) {
            Ok(region) if region.functions.is_empty() => Some("is an ELF file without symbols of functions".into()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
    }
    if Kind::of(file, facts) != Kind::PerfMap || is_named(facts, "map") || file.is_empty() {
        return None;
    }
    if raw_lines(file).take(LINES).any(|line| line.fields().is_some()) {
        return None;
    }
    let start = &file[..file.len().min(4096)];
    let what = if start.contains(&0) { "data of an unknown kind" } else { "text" };
    Some(format!("is {what}, and no jitdump, perf map or file of a region"))
}
