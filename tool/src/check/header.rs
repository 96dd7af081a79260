//! Checks the file header of a jitdump, and its time against the times of the records.

use jitsym::format::jitdump::raw::{RawHeader, RawRecords};
use jitsym::format::jitdump::HEADER_SIZE;

use super::rules::{self, Rule};
use super::{Finding, Place, Report};

/// The `e_machine` values of Linux machines: x86, ARM, RISC-V, PowerPC, s390, MIPS, SPARC, LoongArch, and some rarer
/// machines.
const MACHINES: &[u32] =
    &[2, 3, 4, 8, 15, 20, 21, 22, 40, 42, 43, 50, 62, 88, 92, 93, 94, 164, 183, 189, 243, 252, 258];
/// A day in nanoseconds.
const DAY: u64 = 86_400 * 1_000_000_000;
const YEAR: u64 = 365 * DAY;
/// The wall clock between 2001 and 2100, in nanoseconds. No machine has been up for that long.
pub(super) const TODAY: std::ops::Range<u64> = 31 * YEAR..130 * YEAR;

pub(super) fn check(header: &RawHeader, file: &[u8], report: &mut dyn Report) {
    let mut found = |rule: &'static Rule, text: String| {
        report.finding(Finding { rule, place: Place::Offset(0), subject: "header".into(), text });
    };
    if header.swapped {
        found(&rules::BYTE_ORDER, "the file is not in this machine's byte order".into());
    }
    if header.total_size as usize != HEADER_SIZE {
        found(&rules::HEADER_SIZE, format!("total_size is {}", header.total_size));
    }
    match header.version {
        0 => found(&rules::HEADER_VERSION_ZERO, "version is 0".into()),
        1 => {}
        version => found(&rules::HEADER_VERSION, format!("version is {version}")),
    }
    if header.unknown_flags() != 0 {
        found(&rules::HEADER_FLAGS, format!("flags are {:#x}", header.flags));
    }
    if header.arch_timestamp() {
        found(&rules::ARCH_TIMESTAMP, format!("flags are {:#x}", header.flags));
    }
    if header.machine == 0 {
        found(&rules::MACHINE_ZERO, "elf_mach is 0".into());
    } else if !MACHINES.contains(&header.machine) {
        found(&rules::MACHINE_UNKNOWN, format!("elf_mach is {}", header.machine));
    }
    if header.pid == 0 {
        found(&rules::HEADER_PID_ZERO, "pid is 0".into());
    }
    if header.timestamp == 0 {
        found(&rules::HEADER_TIME_ZERO, "timestamp is 0".into());
    }
    let first = RawRecords::new(file, header).next().map(|record| record.timestamp);
    if let Some(first) = first.filter(|_| !header.arch_timestamp()) {
        // A time in microseconds looks like three weeks of uptime. So only its distance from the records' times shows the
        // error.
        let microseconds = TODAY.contains(&header.timestamp.saturating_mul(1000));
        let of_today = microseconds || TODAY.contains(&header.timestamp);
        if of_today && header.timestamp.abs_diff(first) > DAY {
            let text = format!("timestamp is {}, and that of the first record {first}", header.timestamp);
            found(&rules::HEADER_WALL_CLOCK, text);
        } else if first < header.timestamp {
            let text = format!("the first record is {} ns older than the header", header.timestamp - first);
            found(&rules::TIME_BEFORE_HEADER, text);
        }
    }
}
