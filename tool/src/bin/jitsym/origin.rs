//! Whether a file is a copy, or was renamed: its name and place then say nothing of whether readers have found it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jitsym::format::file_names::{parse, FileKind};
use jitsym::format::jitdump::raw::{RawHeader, RawRecords};
use jitsym_tool::kind::Kind;
use jitsym_tool::open;

/// Between a last write and what a writer does to its file after that. A new map is renamed into place.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Whether it certainly is no file that a runtime has written there.
pub fn is_copy(path: &Path, bytes: &[u8], kind: Kind) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let start = match kind {
        Kind::Jitdump => "jit",
        Kind::PerfMap => "perf",
        // Its name is in the mapping.
        Kind::Region => return false,
    };
    // A runtime that mistypes the name comes nearer to it.
    if !name.starts_with(start) {
        return true;
    }
    // Who writes changes both times, who renames or unpacks only one of them.
    let written = metadata.mtime_nsec() + metadata.mtime() * 1_000_000_000;
    let changed = metadata.ctime_nsec() + metadata.ctime() * 1_000_000_000;
    if changed.saturating_sub(written) > AFTERWARDS.as_nanos() as i64 {
        return true;
    }
    (kind == Kind::Jitdump && is_younger(bytes, &metadata)) || has_original(path, bytes)
}

/// A jitdump that was made after all that it tells of.
fn is_younger(bytes: &[u8], metadata: &Metadata) -> bool {
    let Some(header) = RawHeader::read(bytes).filter(|header| !header.arch_timestamp()) else { return false };
    let last = RawRecords::new(bytes, &header).map(|record| record.timestamp).max().unwrap_or_default();
    let Some((boot, uptime)) = boot() else { return false };
    let last = Duration::from_nanos(last);
    // Some write the time of another clock there.
    let begun = Some(Duration::from_nanos(header.timestamp)).filter(|begun| *begun <= uptime).unwrap_or_default();
    // That of another machine, or from before it was started anew.
    if last > uptime {
        return last < Duration::from_secs(31 * 365 * 86_400);
    }
    let born = metadata.created().ok();
    born.is_some_and(|born| born > boot + last.max(begun) + AFTERWARDS)
}

/// When the clock of the records was zero, and what it says now.
fn boot() -> Option<(SystemTime, Duration)> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes nothing but this struct.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let uptime = Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?);
    (result == 0).then_some(())?;
    Some((SystemTime::now().checked_sub(uptime)?, uptime))
}

/// The same bytes are in `/tmp` under a name that readers look for.
fn has_original(path: &Path, bytes: &[u8]) -> bool {
    let usual = |name| matches!(parse(name), Some((_, FileKind::Jitdump { .. } | FileKind::PerfMap)));
    fs::read_dir("/tmp").into_iter().flatten().flatten().any(|entry| {
        let other = entry.path();
        usual(entry.file_name())
            && other != path
            && entry.metadata().is_ok_and(|data| data.is_file() && data.len() == bytes.len() as u64)
            && open::named(&other).and_then(|file| open::read(&file)).is_ok_and(|there| there == bytes)
    })
}
