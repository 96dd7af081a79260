//! The names of the files that the library and `perf inject` make. Only this file prints and parses these names.

use std::ffi::{OsStr, OsString};

/// How many names a process may use for jitdumps. Each copy of the library in the process needs a separate jitdump.
pub const JITDUMPS: usize = 10;

/// The kind of a file, with the numbers that its name contains in addition to the pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FileKind {
    /// `perf-PID.map`
    PerfMap,
    /// `jit-PID.dump`. perf accepts only names of this form, and reads the digits as a number (linux tools/perf/util/jitdump.c,
    /// `jit_detect`). So names with different numbers of leading zeros, such as `jit-17.dump` and `jit-017.dump`, belong to the
    /// same process.
    Jitdump { zeros: usize },
    /// `jit-PID-N.so`, or `jitted-PID-rN.so` if the loaded segment begins at the code. `.EPOCH` may follow the number N. If
    /// the file was made when the process PARENT forked this process, `.fPARENT` follows N. `epoch` or `parent` is 0 if the
    /// name does not contain this number.
    Region { number: u32, begins_at_code: bool, epoch: u32, parent: u32 },
    /// `jit-PID-vN.so`, which valgrind reads.
    ForValgrind { number: u32 },
    /// `jitsym-PID-START-MADE.spool`. START is the time at which the process was started, and MADE is the time at which the
    /// spool was made. Both times are hexadecimal.
    Spool { start: u64, made: u64 },
    /// `jitted-PID-INDEX.so`, which `perf inject` makes for each function in a jitdump.
    Injected { index: u64 },
}

impl FileKind {
    pub fn name(self, pid: u32) -> String {
        match self {
            FileKind::PerfMap => format!("perf-{pid}.map"),
            FileKind::Jitdump { zeros } => format!("jit-{}{pid}.dump", "0".repeat(zeros)),
            FileKind::Region { number, begins_at_code, epoch, parent } => {
                let (first, letter) = if begins_at_code { ("jitted", "r") } else { ("jit", "") };
                let epoch = if epoch > 0 { format!(".{epoch}") } else { String::new() };
                let parent = if parent > 0 { format!(".f{parent}") } else { String::new() };
                format!("{first}-{pid}-{letter}{number}{epoch}{parent}.so")
            }
            FileKind::ForValgrind { number } => format!("jit-{pid}-v{number}.so"),
            FileKind::Spool { start, made } => format!("jitsym-{pid}-{start:x}-{made:x}.spool"),
            FileKind::Injected { index } => format!("jitted-{pid}-{index}.so"),
        }
    }
}

/// The pid and kind in a file name. `None` if `FileKind::name` never prints this name.
pub fn parse(name: impl AsRef<OsStr>) -> Option<(u32, FileKind)> {
    let text = name.as_ref().to_str()?;
    let (pid, kind) = split(text)?;
    (kind.name(pid) == text).then_some((pid, kind))
}

/// Whether a process can have this pid on Linux.
pub fn is_pid(number: u32) -> bool {
    (1..=i32::MAX as u32).contains(&number)
}

/// Splits a name into the pid and the kind. Also accepts names that are never printed, for example names with leading zeros.
fn split(text: &str) -> Option<(u32, FileKind)> {
    let (first, rest) = text.split_once('-')?;
    let (rest, extension) = rest.rsplit_once('.')?;
    let (pid, rest) = rest.split_once('-').unwrap_or((rest, ""));
    let kind = match (first, extension) {
        ("perf", "map") => FileKind::PerfMap,
        ("jit", "dump") => FileKind::Jitdump { zeros: pid.len() - pid.trim_start_matches('0').len() },
        ("jitsym", "spool") => {
            let (start, made) = rest.split_once('-')?;
            let time = |digits| u64::from_str_radix(digits, 16).ok();
            FileKind::Spool { start: time(start)?, made: time(made)? }
        }
        ("jit", "so") if rest.starts_with('v') => FileKind::ForValgrind { number: rest[1..].parse().ok()? },
        ("jitted", "so") if !rest.starts_with('r') => FileKind::Injected { index: rest.parse().ok()? },
        ("jit" | "jitted", "so") => {
            let rest = rest.trim_start_matches('r');
            let (number, last) = rest.split_once('.').unwrap_or((rest, "0"));
            let (digits, is_of_child) = last.strip_prefix('f').map_or((last, false), |digits| (digits, true));
            let (number, last) = (number.parse().ok()?, digits.parse().ok()?);
            let (epoch, parent) = if is_of_child { (0, last) } else { (last, 0) };
            FileKind::Region { number, begins_at_code: first == "jitted", epoch, parent }
        }
        _ => return None,
    };
    Some((pid.parse().ok()?, kind))
}

/// Returns a name for a new file that will replace the map or jitdump `name`. The returned name begins with a dot, so readers
/// ignore the file.
pub fn replacement_of(name: &OsStr, random: Option<u64>) -> OsString {
    let random = random.map_or(String::new(), |random| format!(".{random:016x}"));
    [".".as_ref(), name, random.as_ref(), ".new".as_ref()].into_iter().collect()
}

/// Parses a name that [`replacement_of`] has made. Returns the pid and the kind of the map or jitdump that the file was to
/// replace. Returns `None` for all other names.
pub fn replaced_by(name: &OsStr) -> Option<(u32, FileKind)> {
    let text = name.to_str()?.strip_prefix('.')?.strip_suffix(".new")?;
    let (of, random) = match text.rsplit_once('.').map(|(of, random)| (of, u64::from_str_radix(random, 16))) {
        Some((of, Ok(random))) => (of, Some(random)),
        _ => (text, None),
    };
    let can_be = |(_, kind): &_| matches!(kind, FileKind::PerfMap | FileKind::Jitdump { .. });
    parse(of).filter(can_be).filter(|_| replacement_of(of.as_ref(), random) == name)
}

/// The prefixes of the names of a process's region files.
pub fn beginnings_of_regions(pid: u32) -> [String; 2] {
    [format!("jit-{pid}-"), format!("jitted-{pid}-r")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_printed_are_parsed() {
        let region = |number, begins_at_code, epoch, parent| FileKind::Region { number, begins_at_code, epoch, parent };
        let all = [
            ("perf-17.map", FileKind::PerfMap),
            ("jit-17.dump", FileKind::Jitdump { zeros: 0 }),
            ("jit-00017.dump", FileKind::Jitdump { zeros: 3 }),
            ("jit-00000000000017.dump", FileKind::Jitdump { zeros: 12 }),
            ("jit-17-0.so", region(0, false, 0, 0)),
            ("jit-17-12.345.so", region(12, false, 345, 0)),
            ("jit-17-0.f4711.so", region(0, false, 0, 4711)),
            ("jitted-17-r4711.so", region(4711, true, 0, 0)),
            ("jitted-17-r12.345.so", region(12, true, 345, 0)),
            ("jitted-17-r0.f4711.so", region(0, true, 0, 4711)),
            ("jit-17-v4711.so", FileKind::ForValgrind { number: 4711 }),
            ("jitsym-17-2af-1c.spool", FileKind::Spool { start: 0x2af, made: 0x1c }),
            ("jitted-17-1099511627776.so", FileKind::Injected { index: 1 << 40 }),
        ];
        for (text, kind) in all {
            assert_eq!((parse(text), &*kind.name(17)), (Some((17, kind)), text));
        }
    }

    #[test]
    fn other_names_are_not() {
        let bad = [
            "perf-17.map.bak",
            "perf-+17.map",
            "perf-017.map",
            "perf-.map",
            "perf-17a.map",
            "xperf-17.map",
            "perf-17.dump",
            "perf-17.map.new",
            "perf-17.map.0123456789abcdef",
            ".perf-17.map",
            "perf-99999999999.map",
            "perf.data",
            "jit-.dump",
            "jit-0.dump",
            "jit-elsewhere.dump",
            "jit-17-1.dump",
            "jit-17-0.0.so",
            "jit-17-0.f0.so",
            "jitted-17-r.so",
            "jitted-17-r1.so.so",
            "jitted-x-r1.so",
            "jitted-17-rr1.so",
            "jit-17-r1.so",
            "jit-17-v1.2.so",
            "jit-17-vv1.so",
            "jitted-17-v1.so",
            "jitted-17-rv1.so",
            "jit-17.so",
            "jit-17-.so",
            "jit-17-1",
            "jit-17-01.so",
            "jit-17-+1.so",
            "jit-17-1..so",
            "jit-17-1.f.so",
            "jit-17-1.ff2.so",
            "jit-17-1.2.3.so",
            "jit-17-1.x.so",
            "jit-17-1-2.so",
            "jit--17-1.so",
            "jit-17-99999999999.so",
            "libjit-17-4.so",
            "jitted-17.so",
            "jitted--1.so",
            "jitted-17-4.so.old",
            "jitted-1x-1.so",
            "jitted-17-1.2.so",
            "jitsym-17.spool",
            "jitsym-17-1.spool",
            "jitsym-x-1-2.spool",
            "jitsym-17-2AF-1c.spool",
            "jitsym-17-2af-1c",
        ];
        for name in bad {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn not_every_number_is_a_pid() {
        for name in ["perf-0.map", "perf-2147483648.map", "jit-0-1.so", "jitted-0-1.so"] {
            assert!(parse(name).is_some_and(|(pid, _)| !is_pid(pid)), "{name}");
        }
        assert!(parse("perf-2147483647.map").is_some_and(|(pid, _)| is_pid(pid)));
    }

    #[test]
    fn new_files_name_the_files_that_they_replace() {
        for (name, random) in [("perf-17.map", None), ("jit-017.dump", Some(0xff)), ("jit-17.dump", Some(u64::MAX))] {
            let new = replacement_of(name.as_ref(), random);
            assert_eq!(replaced_by(&new), parse(name), "{new:?}");
        }
        assert_eq!(replacement_of("perf-17.map".as_ref(), Some(0xff)), ".perf-17.map.00000000000000ff.new");
        let bad = [
            "perf-17.map.new",
            ".perf-17.map",
            ".perf-17.map.0123456789abcdef",
            ".perf-17.map.0123456789abcde.new",
            ".perf-17.map.0123456789ABCDEF.new",
            ".perf-17.map.0123456789abcdef.0123456789abcdef.new",
            ".jit-17-1.so.new",
            ".new",
        ];
        for name in bad {
            assert_eq!(replaced_by(name.as_ref()), None, "{name}");
        }
    }
}
