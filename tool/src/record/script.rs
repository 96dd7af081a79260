//! Parses the output of `perf script` into samples and mappings.

use std::io::{self, BufRead};

use jitsym::format::file_names::{parse, FileKind};

use crate::objects;

/// The fields that perf is asked to print. The command's name is not among them, because it may contain any text.
pub const FIELDS: &str = "pid,tid,time,ip,sym,dso";

/// A sample. The frames begin with the innermost frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub pid: u32,
    pub tid: u32,
    /// In nanoseconds on the clock of the recording, or 0 if the recording has no times.
    pub time: u64,
    pub frames: Vec<Frame>,
}

impl Sample {
    /// The innermost frame in compiled code. After `perf inject`, code without a record is in no mapping.
    pub fn compiled(&self) -> Option<&Frame> {
        let innermost = self.frames.first()?;
        let unknown = (innermost.kind() == Kind::Nowhere).then_some(innermost);
        self.frames.iter().find(|frame| frame.kind().is_jit()).or(unknown)
    }
}

#[cfg(test)]
impl Sample {
    /// A sample with these symbols and objects. An empty string stands for a missing symbol.
    pub fn of(frames: &[(&str, &str)]) -> Sample {
        let frame = |&(symbol, object): &(&str, &str)| Frame {
            symbol: Some(symbol.into()).filter(|_| !symbol.is_empty()),
            object: object.into(),
            address: 1,
        };
        Sample { pid: 7, tid: 7, time: 5, frames: frames.iter().map(frame).collect() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// `None` if perf has no name for the address.
    pub symbol: Option<String>,
    /// The file that contains the address, by the name that perf prints.
    pub object: String,
    /// The address in memory. With a call graph, it is the address in the file if there is a file.
    pub address: u64,
}

/// The kind of code that a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Kernel,
    /// A program or library.
    File,
    /// An object that `jitsym inject` or `perf inject` has made from a jitdump.
    Injected,
    /// The file of a region.
    Region,
    /// Code that a perf map names.
    Map,
    /// Memory without a file and without names.
    Memory,
    /// Memory in no mapping that is known to perf.
    Nowhere,
}

impl Kind {
    /// Whether the code is JIT-compiled. For an address in no mapping, one frame is not enough to determine this.
    pub fn is_jit(self) -> bool {
        matches!(self, Kind::Injected | Kind::Region | Kind::Map | Kind::Memory)
    }
}

/// The last part of a path.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether libjitsym writes a file with this name for a region.
pub fn is_region(path: &str) -> bool {
    matches!(of_path(path), Some((_, FileKind::Region { .. } | FileKind::ForValgrind { .. })))
}

/// The process and the kind of a file, by its path. The file may have been deleted.
pub fn of_path(path: &str) -> Option<(u32, FileKind)> {
    parse(file_name(path.strip_suffix(" (deleted)").unwrap_or(path)))
}

/// The program that has put objects of compiled code into a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injector {
    Jitsym,
    Perf,
}

impl Injector {
    pub fn program(self) -> &'static str {
        match self {
            Injector::Jitsym => "jitsym inject",
            Injector::Perf => "perf inject",
        }
    }
}

/// The program that makes objects with such a name. `None` if it is not the name of an object.
pub fn injector(path: &str) -> Option<Injector> {
    match of_path(path) {
        Some((_, FileKind::Injected { .. })) => Some(Injector::Perf),
        _ => objects::pid_of(file_name(path)).map(|_| Injector::Jitsym),
    }
}

/// The number in `jit-NUMBER.dump`. perf treats every file with such a name as a jitdump.
pub fn jitdump_pid(path: &str) -> Option<u32> {
    match parse(file_name(path))? {
        (pid, FileKind::Jitdump { .. }) => Some(pid),
        _ => None,
    }
}

/// Whether a mapping has no file, according to the name that perf prints.
pub fn is_memory(object: &str) -> bool {
    ["//anon", "[anon", "/memfd:", "/dev/zero", "/anon_hugepage", "/SYSV"].iter().any(|start| object.starts_with(start))
}

impl Frame {
    pub fn kind(&self) -> Kind {
        let object = &*self.object;
        let name = file_name(object);
        if object == "[unknown]" || object.is_empty() {
            // Addresses of the kernel may be hidden from this user.
            if self.address >= 1 << 63 {
                Kind::Kernel
            } else {
                Kind::Nowhere
            }
        } else if object.starts_with("[kernel") || object.starts_with("[guest.kernel") || name.contains(".ko") {
            Kind::Kernel
        } else if is_region(object) {
            Kind::Region
        } else if injector(object).is_some() {
            Kind::Injected
        } else if object.starts_with("[JIT]") || matches!(of_path(object), Some((_, FileKind::PerfMap))) {
            // perf uses this name after it has searched for a perf map, even if it found no map.
            if self.symbol.is_some() {
                Kind::Map
            } else {
                Kind::Memory
            }
        } else if is_memory(object) {
            if self.symbol.is_some() {
                Kind::Map
            } else {
                Kind::Memory
            }
        } else if object.starts_with('[') && object != "[vdso]" && object != "[vsyscall]" {
            // `[heap]` and `[stack]` can contain code too.
            Kind::Memory
        } else {
            Kind::File
        }
    }

    /// The name to show.
    pub fn shown(&self) -> String {
        match &self.symbol {
            Some(symbol) => symbol.clone(),
            None if self.kind() == Kind::File => format!("[{}]", file_name(&self.object)),
            None if self.kind() == Kind::Kernel => "[kernel]".into(),
            None => "[unknown]".into(),
        }
    }
}

/// Passes each sample of the output to `found`. With call graphs, a sample is a block with one line for each frame. Without
/// call graphs, a sample is one line.
pub fn samples(output: impl BufRead, found: &mut dyn FnMut(&Sample)) -> io::Result<()> {
    let mut sample: Option<Sample> = None;
    for line in output.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let trimmed = line.trim();
        if trimmed.is_empty() {
            if let Some(done) = sample.take() {
                found(&done);
            }
        } else if line.starts_with('\t') {
            let frame = frame(trimmed);
            if let (Some(sample), Some(frame)) = (&mut sample, frame) {
                sample.frames.push(frame);
            }
        } else if let Some((pid, tid, time, rest)) = header(trimmed) {
            if let Some(done) = sample.take() {
                found(&done);
            }
            sample = Some(Sample { pid, tid, time, frames: frame(rest).into_iter().collect() });
        }
    }
    if let Some(done) = sample.take() {
        found(&done);
    }
    Ok(())
}

/// Parses `PID/TID SECONDS.NANOSECONDS:` and the rest. Unknown processes have the pid -1, and some recordings have no times.
fn header(line: &str) -> Option<(u32, u32, u64, &str)> {
    let (ids, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let (pid, tid) = ids.split_once('/')?;
    let rest = rest.trim();
    let timed = rest.split_once(':').and_then(|(time, rest)| Some((nanoseconds(time)?, rest)));
    let (time, rest) = timed.unwrap_or((0, rest));
    let number = |text: &str| Some(text.parse::<i64>().ok()? as u32);
    Some((number(pid)?, number(tid)?, time, rest.trim()))
}

fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    let fraction: u64 = fraction.parse::<u32>().ok().filter(|_| fraction.len() == 9)?.into();
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// Parses `ADDRESS SYMBOL (OBJECT)`. Symbol and object may contain blanks and parentheses.
fn frame(text: &str) -> Option<Frame> {
    let (address, rest) = text.split_once(' ')?;
    let rest = rest.trim_start().strip_suffix(')')?;
    // Paths begin with `/`, and names that perf has made begin with `[`. Paths and such names may contain ` (`.
    let bare = rest.strip_suffix(" (deleted)").unwrap_or(rest);
    let begins = [" (/", " (["].iter().filter_map(|start| bare.rfind(start)).max();
    let from = begins.or(rest.starts_with('(').then_some(0)).or(bare.rfind(" ("))?;
    let symbol = rest[..from].trim();
    Some(Frame {
        address: u64::from_str_radix(address, 16).ok()?,
        symbol: (symbol != "[unknown]" && !symbol.is_empty()).then(|| symbol.to_owned()),
        object: rest[from..].trim_start().trim_start_matches('(').to_owned(),
    })
}

/// A mapping that the recording contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub pid: u32,
    pub start: u64,
    pub size: u64,
    pub executable: bool,
    pub path: String,
}

/// Parses `... PERF_RECORD_MMAP2 PID/TID: [START(SIZE) @ OFFSET DEVICE INODE GENERATION]: PROTECTION PATH`.
pub fn mapping(line: &str) -> Option<Mapping> {
    let (_, rest) = line.split_once("PERF_RECORD_MMAP")?;
    let (_, rest) = rest.split_once(' ')?;
    let (ids, rest) = rest.split_once(": [")?;
    let (range, rest) = rest.split_once(") @ ")?;
    let (start, size) = range.split_once('(')?;
    let (_, rest) = rest.split_once("]: ")?;
    let (protection, path) = rest.split_once(' ')?;
    let hexadecimal = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    Some(Mapping {
        pid: ids.trim().split('/').next()?.parse::<i64>().ok()? as u32,
        start: hexadecimal(start)?,
        size: hexadecimal(size)?,
        executable: protection.contains('x'),
        path: path.trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Sample> {
        let mut all = Vec::new();
        samples(text.as_bytes(), &mut |sample| all.push(sample.clone())).unwrap();
        all
    }

    #[test]
    fn names_with_blanks_and_parentheses() {
        let stacks = all(" 100/101  7.000000012: \n\t  84 operator()(int) const (/tmp/jitted-100-7.so)\n\t 7f0000002000 two  blanks (/tmp/perf-100.map)\n\
            \t 1b2c4 main (/home/me (old)/vm)\n\t 10 [unknown] (/memfd:code (deleted))\n\n   -1/-1  \n\n");
        assert_eq!(stacks.len(), 2);
        let names: Vec<Option<&str>> = stacks[0].frames.iter().map(|frame| frame.symbol.as_deref()).collect();
        assert_eq!(names, [Some("operator()(int) const"), Some("two  blanks"), Some("main"), None]);
        let kinds: Vec<Kind> = stacks[0].frames.iter().map(Frame::kind).collect();
        assert_eq!(kinds, [Kind::Injected, Kind::Map, Kind::File, Kind::Memory]);
        assert_eq!((stacks[0].time, stacks[1].time), (7_000_000_012, 0));
        assert_eq!((stacks[0].pid, stacks[1].pid, stacks[1].frames.len()), (100, u32::MAX, 0));
        let flat = all(
            " 100/101  1.000000000:      7f0000001004 a b (/tmp/jit-100-1.so)\n 100/101  7f00 [unknown] ([unknown])\n",
        );
        assert_eq!(flat.len(), 2);
        assert_eq!((flat[0].frames[0].kind(), flat[1].frames[0].kind()), (Kind::Region, Kind::Nowhere));
    }

    #[test]
    fn files_by_their_names() {
        assert!(
            is_region("/tmp/jitted-100-r1.3.so") && is_region("/x/jit-7-0.so") && !is_region("/tmp/jitted-100-1.so")
        );
        assert_eq!((jitdump_pid("/tmp/jit-0012.dump"), jitdump_pid("/tmp/jit-1.dump (deleted)")), (Some(12), None));
        let kind = |object: &str, symbol: Option<&str>| {
            Frame { symbol: symbol.map(str::to_owned), object: object.into(), address: 16 }.kind()
        };
        assert_eq!(kind("[JIT] tid 7", None), Kind::Memory);
        assert_eq!(kind("[JIT] tid 7", Some("f")), Kind::Map);
        assert_eq!(kind("[kernel.kallsyms]", Some("f")), Kind::Kernel);
        assert_eq!(kind("[vdso]", Some("f")), Kind::File);
    }

    #[test]
    fn mappings() {
        let line = "18595 PERF_RECORD_MMAP2 18595/18595: [0x5649aa1ef000(0x13000) @ 0x4000 fe:00 247076 0]: r-xp /tmp/jit-1.dump\n";
        let expected = Mapping {
            pid: 18595,
            start: 0x5649_aa1e_f000,
            size: 0x13000,
            executable: true,
            path: "/tmp/jit-1.dump".into(),
        };
        assert_eq!(mapping(line), Some(expected));
        let anon = mapping("x PERF_RECORD_MMAP -1/0: [0x10(0x20) @ 0x10]: x [kernel.kallsyms]_text").unwrap();
        assert_eq!((anon.pid, &*anon.path), (u32::MAX, "[kernel.kallsyms]_text"));
        assert_eq!(mapping("7 PERF_RECORD_COMM: x"), None);
    }
}
