//! Checks the properties of the machine: perf and the permission to use it, directories, the environment.

use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::words::{self, Finding};
use super::{size, Rank, Report, RECORD};
use crate::record::perf::{Perf, Unwinder};
use crate::text::Shown;

/// The minimum free space. Less space is not enough for a program that compiles, because a single spool can have this size.
const ROOM: u64 = 1 << 20;
/// The capability that perf needs, and the older capability that includes it.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// The settings in an environment's variables, as far as other checks need them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Variables {
    pub is_on: bool,
    pub is_off: bool,
    pub adopts: bool,
    pub no_unwind: bool,
}

/// Checks the machine. Returns `None` for perf if perf does not exist.
pub fn look(program: &Path, proc: &Path, report: &mut Report) -> (Option<Perf>, Variables) {
    report.part("machine");
    let perf = perf(program, proc, report);
    permission(proc, report);
    (perf, for_command(report))
}

/// Checks the environment that a command gets: directories and variables.
pub fn for_command(report: &mut Report) -> Variables {
    let env = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let set = |name: &str| env(name).map(PathBuf::from);
    let dir = set("JITSYM_DIR").unwrap_or_else(|| "/tmp".into());
    // Each wrong variable is reported only once.
    if jitsym::doubt("JITSYM_DIR".as_ref(), dir.as_os_str()).is_none() {
        files_dir(&dir, RECORD, report);
    }
    spool_dir(&set("JITSYM_SPOOL_DIR").unwrap_or_else(|| "/dev/shm".into()), report);
    environment(std::env::vars_os(), RECORD, report)
}

fn perf(program: &Path, proc: &Path, report: &mut Report) -> Option<Perf> {
    let perf = Perf::new(program, proc);
    let facts = perf.and_then(|perf| Ok((perf.version()?, perf.unwinder()?, perf)));
    match facts {
        Ok((version, unwinder, perf)) => {
            let unwinds = match unwinder {
                Unwinder::Libunwind => {
                    "libunwind goes through stacks (it needs a gap after code, regions, `jitsym record`, or `jitsym inject`)"
                }
                Unwinder::Libdw => "libdw goes through stacks",
                Unwinder::None => "it cannot go through stacks by unwind tables",
            };
            report.good(format!("perf {version} ({}): {unwinds}", perf.program().shown()));
            Some(perf)
        }
        Err(cause) => {
            report.cause(
                cause.clone(),
                Rank::Perf,
                cause,
                format!("apt install linux-perf && {} --version", program.shown()),
            );
            None
        }
    }
}

fn permission(proc: &Path, report: &mut Report) {
    let text = fs::read_to_string(proc.join("sys/kernel/perf_event_paranoid"));
    let Ok(level) = text.unwrap_or_default().trim().parse::<i32>() else {
        report.cause(
            "no perf_event_paranoid: the kernel has no events",
            Rank::Perf,
            "this kernel has no support for perf",
            "uname -r",
        );
        return;
    };
    let status = fs::read_to_string(proc.join("self/status")).unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    let may = (capabilities >> CAP_PERFMON | capabilities >> CAP_SYS_ADMIN) & 1 == 1;
    match (may, level) {
        (true, _) => report.good(format!("perf_event_paranoid is {level}, and you may record everything")),
        (false, ..=2) => report.good(format!("perf_event_paranoid is {level}: you may record your own processes")),
        (false, _) => report.cause(
            format!("perf_event_paranoid is {level}: you may record nothing"),
            Rank::Perf,
            format!("/proc/sys/kernel/perf_event_paranoid is {level}: only root may record, 2 or less lets you record your own processes"),
            "sudo sysctl kernel.perf_event_paranoid=2",
        ),
    }
}

/// The properties of a directory.
pub struct Room {
    writable: bool,
    pub noexec: bool,
    free: u64,
    /// Whether the file system has no size limit.
    unlimited: bool,
    /// Whether this is a file system of the kernel in which no files can be made.
    kernels: bool,
}

/// Examines a directory. `None` if it does not exist.
pub fn room(dir: &Path) -> Option<Room> {
    let path = CString::new(dir.as_os_str().as_bytes()).ok()?;
    if !dir.is_dir() {
        return None;
    }
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero, and the struct is written if the result is 0.
    let found = unsafe {
        if libc::statvfs(path.as_ptr(), found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    // SAFETY: as above; nothing is written.
    let writable = unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } == 0;
    let noexec = found.f_flag & libc::ST_NOEXEC != 0;
    // A file system without blocks has no size limit, or accepts no files.
    let (no_blocks, kernels) = (found.f_blocks == 0, is_kernels(&path));
    Some(Room { writable, noexec, free: found.f_bavail * found.f_frsize, unlimited: no_blocks && !kernels, kernels })
}

/// File systems of the kernel (linux include/uapi/linux/magic.h): proc, sysfs, cgroups, debugfs, tracefs, securityfs, bpf,
/// devpts.
const KERNELS: [u64; 9] =
    [0x9fa0, 0x6265_6572, 0x6367_7270, 0x27_e0eb, 0x6462_6720, 0x7472_6163, 0x7363_6673, 0xcafe_4a11, 0x1cd1];

fn is_kernels(path: &CStr) -> bool {
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends with a zero, and the struct is written if the result is 0.
    let kind = unsafe { (libc::statfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init().f_type) };
    kind.is_some_and(|kind| KERNELS.contains(&(kind as u64 & 0xffff_ffff)))
}

/// The directory of maps, jitdumps and regions.
pub fn files_dir(dir: &Path, command: &str, report: &mut Report) {
    let shown = dir.shown();
    let elsewhere = format!("JITSYM_DIR=/var/tmp {command}");
    match room(dir) {
        None => report.cause(
            format!("{shown}: no such directory"),
            Rank::Files,
            format!("there is no directory {shown} for the files"),
            elsewhere,
        ),
        Some(Room { kernels: true, .. }) => report.cause(
            format!("{shown} takes no files"),
            Rank::Files,
            format!("{shown} is a file system of the kernel's own: no file can be made there"),
            elsewhere,
        ),
        Some(Room { writable: false, .. }) => report.cause(
            format!("{shown} may not be written to"),
            Rank::Files,
            format!("nothing can be written to {shown}"),
            elsewhere,
        ),
        Some(Room { noexec: true, .. }) => report.cause(
            format!("{shown} is mounted noexec"),
            Rank::Files,
            format!("{shown} is mounted noexec: there can be no jitdump and no region, only the perf map"),
            elsewhere,
        ),
        Some(Room { free: ..ROOM, unlimited: false, .. }) => {
            report.cause(
                format!("{shown} is full"),
                Rank::Files,
                format!("{shown} is full: free some room, or set JITSYM_DIR to another directory"),
                format!("df -h {shown}"),
            );
        }
        Some(Room { unlimited: true, .. }) => report.good(format!("{shown}: room without a limit")),
        Some(Room { free, .. }) => report.good(format!("{shown}: {} free", size(free))),
    }
}

/// The directory of the spools that killed programs leave for `jitsym recover`.
fn spool_dir(dir: &Path, report: &mut Report) {
    let shown = dir.shown();
    let (line, text) = match room(dir) {
        Some(Room { writable: true, kernels: false, free: ROOM.., .. } | Room { writable: true, unlimited: true, .. }) => {
            report.good(format!("{shown}: room for what a killed program has not written yet"));
            return;
        }
        Some(Room { writable: true, kernels: false, free, .. }) => (
            format!("{shown} has {} left", size(free)),
            format!("{shown} has no room: a program that is killed loses what it has not written yet (usually 50 ms)"),
        ),
        _ => (
            format!("{shown} cannot be used"),
            format!("{shown} cannot be written to: a program that is killed loses what it has not written yet (usually 50 ms)"),
        ),
    };
    report.cause(line, Rank::Minor, text, "JITSYM_SPOOL_DIR=/var/tmp jitsym record -- COMMAND");
}

/// Checks the variables of the library.
pub fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
    command: &str,
    report: &mut Report,
) -> Variables {
    let mut set = Variables::default();
    let mut ours: Vec<(String, OsString)> =
        variables.map(|(name, value)| (name.to_string_lossy().into_owned(), value)).collect();
    ours.sort();
    for (name, value) in ours {
        let Some(found) = words::look(&name, &value) else { continue };
        let shown = format!("{name}={}", value.shown());
        let next = format!("JITSYM=on {command}");
        let switched_off = ["0", "off"].iter().any(|off| value.eq_ignore_ascii_case(off));
        match &*name {
            "JITSYM" => set.is_on = true,
            "JITSYM_ADOPT" => set.adopts = !switched_off,
            "JITSYM_UNWIND" => set.no_unwind = switched_off,
            _ => {}
        }
        match found {
            Finding::Good if name == "JITSYM_REMOVE" && !switched_off => {
                report.note(format!(
                    "{shown}: files go when their process ends, and `jitsym inject` has to run before that; `jitsym record -- COMMAND` sets 0"
                ));
            }
            Finding::Good => report.good(shown),
            Finding::Wrong(text) => {
                let rank =
                    if name.ends_with("DIR") && name != "JITSYM_SPOOL_DIR" { Rank::Environment } else { Rank::Minor };
                report.cause(shown, rank, text, format!("unset {name}; {command}"));
            }
            Finding::Off => {
                set.is_off = true;
                report.cause(shown.clone(), Rank::Environment, format!("{shown} turns everything off"), next);
            }
            Finding::WrongAndOff(text) => {
                set.is_off = true;
                let stop = if text.ends_with('?') { "" } else { "." };
                let text = format!("{text}{stop} Without a word that is known, everything is off");
                report.cause(shown, Rank::Environment, text, next);
            }
        }
    }
    set.is_on &= !set.is_off;
    set
}
