//! Makes the command line and the environment for `perf record`.

use crate::open;
use crate::text::Shown;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The method by which call stacks are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacks {
    /// Stacks by unwind tables, from copies of this number of bytes.
    Dwarf(u32),
    FramePointers,
    None,
}

/// The bytes of a stack that are copied by default, as in perf.
pub const STACK_BYTES: u32 = 8192;
/// The method for stacks if nothing suggests another method.
pub const STACKS: Stacks = Stacks::Dwarf(STACK_BYTES);
/// The maximum number of bytes that the kernel copies.
const STACK_MOST: u32 = 65528;

impl std::str::FromStr for Stacks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let size = |digits: &str| digits.parse().ok().filter(|size| (8..=STACK_MOST).contains(size) && size % 8 == 0);
        match text.split_once(',') {
            None if text == "dwarf" => Ok(Stacks::Dwarf(STACK_BYTES)),
            None if text == "fp" => Ok(Stacks::FramePointers),
            None if text == "none" => Ok(Stacks::None),
            Some(("dwarf", digits)) => size(digits)
                .map(Stacks::Dwarf)
                .ok_or_else(|| format!("the size of the stacks is a multiple of 8 up to {STACK_MOST}")),
            _ => Err("one of dwarf, dwarf,BYTES, fp, none".into()),
        }
    }
}

/// The command or process to record.
#[derive(Clone, Debug)]
pub enum Target {
    Command(Vec<OsString>),
    /// A running process and its children, for this number of seconds or until it ends.
    Process(u32, Option<f64>),
}

/// The options of the user.
#[derive(Clone, Debug)]
pub struct Options {
    pub out: PathBuf,
    pub frequency: u32,
    /// The event in perf's notation. If it is `None`, this program chooses an event.
    pub event: Option<String>,
    /// The method for stacks. If it is `None`, this program uses the method for the runtime of the command, or `STACKS`.
    pub stacks: Option<Stacks>,
    /// Whether the runtimes' own support of perf is enabled.
    pub sets_up: bool,
    /// Whether `JITSYM_ADOPT=1` is set.
    pub adopt: bool,
    /// Whether the output of the command goes to the standard error output.
    pub to_stderr: bool,
    /// The file for `JITSYM_DEBUG`.
    pub log: Option<PathBuf>,
    pub target: Target,
}

/// The event for machines that cannot count the processor's cycles, such as most virtual machines.
pub const CLOCK_EVENT: &str = "cpu-clock";

/// The event that is recorded. `sys` is `/sys`.
pub fn event(options: &Options, sys: &Path) -> String {
    let counts = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name == "cpu" || name.starts_with("cpu_") || name.starts_with("arm") && name.contains("_pmu")
    };
    let devices = fs::read_dir(sys.join("bus/event_source/devices"));
    let has_counters = devices.is_ok_and(|mut devices| devices.any(|entry| entry.is_ok_and(|entry| counts(&entry))));
    let own_choice = if has_counters { "cycles" } else { CLOCK_EVENT };
    options.event.clone().unwrap_or_else(|| own_choice.into())
}

/// The arguments of `perf record` before the command. `data` is the output file.
pub fn arguments(options: &Options, stacks: Stacks, event: &str, data: &Path, pids: &BTreeSet<u32>) -> Vec<OsString> {
    // `-k 1` selects the clock of the jitdump. The code of jitdumps cannot be put into recordings with another clock.
    let mut arguments: Vec<OsString> = ["-k", "1", "-e", event, "-F"].map(OsString::from).to_vec();
    arguments.push(options.frequency.to_string().into());
    match stacks {
        Stacks::Dwarf(size) => arguments.extend(["--call-graph".into(), format!("dwarf,{size}").into()]),
        Stacks::FramePointers => arguments.extend(["--call-graph".into(), "fp".into()]),
        Stacks::None => {}
    }
    if !pids.is_empty() {
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        arguments.extend(["-p".into(), list.join(",").into()]);
    }
    arguments.extend([OsStr::new("-o").into(), data.as_os_str().into()]);
    arguments
}

/// Variables that are added to the command's environment. If `adopt` is true, `JITSYM_ADOPT=1` is also added.
pub fn environment(adopt: bool, env: &dyn Fn(&str) -> Option<OsString>) -> Vec<(&'static str, &'static str)> {
    let mut added = Vec::new();
    let is_unset = |name: &str| env(name).is_none_or(|value| value.is_empty());
    if is_unset("JITSYM") {
        added.push(("JITSYM", "on"));
    }
    // A child that compiles nothing still runs its parent's code.
    if is_unset("JITSYM_FORK") {
        added.push(("JITSYM_FORK", "now"));
    }
    let is_set =
        |name: &str| env(name).is_some_and(|value| !["", "0", "off"].iter().any(|off| value.eq_ignore_ascii_case(off)));
    // The jitdump is read after the program has ended.
    if is_set("JITSYM_REMOVE") {
        added.push(("JITSYM_REMOVE", "0"));
    }
    // perf can compare such times only with the times of Intel PT.
    if is_set("JITDUMP_USE_ARCH_TIMESTAMP") {
        added.push(("JITDUMP_USE_ARCH_TIMESTAMP", "0"));
    }
    if adopt && is_unset("JITSYM_ADOPT") {
        added.push(("JITSYM_ADOPT", "1"));
    }
    added
}

/// A process and its descendants. perf itself follows children that are forked later.
pub fn family(pid: u32, proc: &Path) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        if !found.insert(pid) {
            continue;
        }
        let tasks = fs::read_dir(proc.join(format!("{pid}/task")));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            open.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}

/// The path `out` with a suffix.
pub fn beside(out: &Path, suffix: &str) -> PathBuf {
    let mut name = out.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Whether a recording can be put at this path. An existing file is renamed, but other kinds of files are not.
pub fn check_place(out: &Path) -> Result<(), String> {
    let places = [out.to_owned(), beside(out, ".old")];
    // The `.old` file is replaced only if a file with the first name exists.
    for place in places.iter().take(if out.exists() { 2 } else { 1 }) {
        let kind = match fs::metadata(place) {
            Ok(data) => data.file_type(),
            Err(_) => continue,
        };
        let what = match () {
            () if kind.is_file() => continue,
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(format!("{} is {what}, and a recording goes to a file", place.shown()));
    }
    Ok(())
}

/// The reason why a command cannot be run: exit status and text, as in shells.
pub fn refusal(command: &OsStr) -> Option<(u8, String)> {
    if let Some(program) = super::perf::find_program(command) {
        let interpreter = missing_interpreter(&program, INTERPRETERS)?;
        return Some((126, format!("{} needs the interpreter {interpreter}, which cannot be run", command.shown())));
    }
    let shown = command.shown();
    match fs::metadata(command) {
        Ok(file) if file.is_dir() => Some((126, format!("{shown} is a directory"))),
        Ok(file) if file.permissions().mode() & 0o111 == 0 && Path::new(command).components().count() > 1 => {
            Some((126, format!("{shown} may not be executed")))
        }
        _ => Some((127, format!("there is no command {shown}"))),
    }
}

/// The maximum depth to which the kernel follows scripts whose interpreter is a script.
const INTERPRETERS: u32 = 4;

/// The interpreter of a script or program, if the interpreter does not exist or cannot be run. perf does not report this.
fn missing_interpreter(program: &Path, depth: u32) -> Option<String> {
    let file = open::named(program).ok()?;
    let mut start = [0; 4096];
    let len = file.read_at(&mut start, 0).ok()?;
    let name = match start[..len].strip_prefix(b"#!") {
        Some(line) => {
            let line = line.split(|&byte| byte == b'\n').next()?;
            line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?.to_vec()
        }
        None => elf_interpreter(&start[..len])?,
    };
    let interpreter = Path::new(OsStr::from_bytes(&name));
    match fs::metadata(interpreter) {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => {
            missing_interpreter(interpreter, depth.checked_sub(1)?)
        }
        _ => Some(interpreter.shown().to_string()),
    }
}

/// The dynamic loader of a 64-bit program, if its name is in the first bytes of the file.
fn elf_interpreter(start: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(start.get(at..at.checked_add(len)?)?);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    if !start.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let header = (0..count).filter_map(|index| table.checked_add(index * size)).find(|&at| number(at, 4) == Some(3))?;
    let (from, len) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
    let name = start.get(from..from.checked_add(len)?)?;
    name.split(|&byte| byte == 0).next().map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let target = Target::Command(vec!["vm".into()]);
        Options {
            out: "perf.data".into(),
            frequency: 499,
            event: None,
            stacks: None,
            sets_up: false,
            adopt: false,
            to_stderr: false,
            log: None,
            target,
        }
    }

    #[test]
    fn perf_is_called_with_the_clock_of_the_jitdump() {
        let pids = BTreeSet::from([7, 8]);
        let words = arguments(&options(), Stacks::Dwarf(16384), "cpu-clock", Path::new("x.raw"), &pids);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words.join(" "), "-k 1 -e cpu-clock -F 499 --call-graph dwarf,16384 -p 7,8 -o x.raw");
        let words = arguments(&options(), Stacks::None, "cycles", Path::new("x"), &BTreeSet::new());
        assert!(!words.iter().any(|word| word == "-p" || word == "--call-graph"), "{words:?}");
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let added = |adopt, set: &[&str]| environment(adopt, &|name| set.contains(&name).then(|| "map".into()));
        assert_eq!(added(false, &[]), [("JITSYM", "on"), ("JITSYM_FORK", "now")]);
        assert_eq!(added(true, &["JITSYM_FORK"]), [("JITSYM", "on"), ("JITSYM_ADOPT", "1")]);
        assert_eq!(added(true, &["JITSYM", "JITSYM_ADOPT", "JITSYM_FORK"]), []);
        let set = ["JITSYM", "JITSYM_FORK", "JITSYM_REMOVE", "JITDUMP_USE_ARCH_TIMESTAMP"];
        assert_eq!(added(false, &set), [("JITSYM_REMOVE", "0"), ("JITDUMP_USE_ARCH_TIMESTAMP", "0")]);
    }

    #[test]
    fn kinds_of_stacks() {
        assert_eq!("dwarf".parse(), Ok(Stacks::Dwarf(STACK_BYTES)));
        assert_eq!("dwarf,32768".parse(), Ok(Stacks::Dwarf(32768)));
        for wrong in ["dwarf,7", "dwarf,65536", "lbr", "fp,8"] {
            assert!(wrong.parse::<Stacks>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_command_that_is_not_there() {
        assert_eq!(refusal(OsStr::new("sh")), None);
        assert_eq!(refusal(OsStr::new("no-such-program")).map(|refused| refused.0), Some(127));
        assert_eq!(refusal(OsStr::new("/etc/passwd")).map(|refused| refused.0), Some(126));
        let sh = super::super::perf::find_program(OsStr::new("sh")).unwrap();
        let start = fs::read(&sh).unwrap();
        #[cfg(all(target_pointer_width = "64", target_endian = "little"))]
        assert!(elf_interpreter(&start).is_some_and(|name| name.starts_with(b"/") && !name.contains(&0)));
        for len in 0..64 {
            assert_eq!(elf_interpreter(&start[..len]), None);
        }
        assert!(family(std::process::id(), Path::new("/proc")).contains(&std::process::id()));
    }
}
