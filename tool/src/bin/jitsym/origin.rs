//! Determines whether a file is a copy or was renamed. The name and path of such a file do not show whether readers have
//! found the file.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jitsym::format::file_names::{parse, FileKind};
use jitsym::format::jitdump::raw::{RawHeader, RawRecords};
use jitsym_tool::kind::Kind;
use jitsym_tool::open;

/// The longest time between the last write and the last change of metadata by the writer, which may rename a new map into
/// place.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Whether the file certainly was not written at this path by a runtime.
pub fn is_copy(path: &Path, bytes: &[u8], kind: Kind) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let start = match kind {
        Kind::Jitdump => "jit",
        Kind::PerfMap => "perf",
        // Readers get the name of a region's file from the mapping.
        Kind::Region => return false,
    };
    // If a runtime had chosen a wrong name by mistake, the name would be more similar to the right name.
    if !name.starts_with(start) {
        return true;
    }
    // Writing sets both times. Renaming and unpacking set only one of them.
    let written = metadata.mtime_nsec() + metadata.mtime() * 1_000_000_000;
    let changed = metadata.ctime_nsec() + metadata.ctime() * 1_000_000_000;
    if changed.saturating_sub(written) > AFTERWARDS.as_nanos() as i64 {
        return true;
    }
    (kind == Kind::Jitdump && is_younger(bytes, &metadata)) || has_original(path, bytes)
}

/// Whether a jitdump was created after its last record.
fn is_younger(bytes: &[u8], metadata: &Metadata) -> bool {
    let Some(header) = RawHeader::read(bytes).filter(|header| !header.arch_timestamp()) else { return false };
    let last = RawRecords::new(bytes, &header).map(|record| record.timestamp).max().unwrap_or_default();
    let Some((boot, uptime)) = boot() else { return false };
    let last = Duration::from_nanos(last);
    // Some producers write the time of another clock.
    let begun = Some(Duration::from_nanos(header.timestamp)).filter(|begun| *begun <= uptime).unwrap_or_default();
    // The records are from another machine, or from before a reboot.
    if last > uptime {
        return last < Duration::from_secs(31 * 365 * 86_400);
    }
    let born = metadata.created().ok();
    born.is_some_and(|born| born > boot + last.max(begun) + AFTERWARDS)
}

/// The time at which the clock of the records was zero, and the present value of this clock.
fn boot() -> Option<(SystemTime, Duration)> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes nothing but this struct.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let uptime = Duration::new(now.tv_sec.try_into().ok()?, now.tv_nsec.try_into().ok()?);
    (result == 0).then_some(())?;
    Some((SystemTime::now().checked_sub(uptime)?, uptime))
}

/// Whether the same bytes are in `/tmp` under a name that readers look for.
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
