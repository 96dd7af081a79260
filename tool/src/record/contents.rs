//! Reads the contents of a recording for each process: jitdumps, files of regions, memory with compiled code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use jitsym::format::jitdump::{places, Header, HEADER_SIZE};

use super::children;
use super::perf::Perf;
use super::script::{self, injector, is_memory, is_region, jitdump_pid, Injector, Mapping};
use crate::doctor::producers::Hidden;
use crate::open;

#[derive(Clone, Debug, Default)]
pub struct Process {
    /// The jitdumps that are mapped executable. perf records these mappings, and finds the jitdumps by them.
    pub dumps: BTreeSet<String>,
    /// The jitdumps that are mapped otherwise. These jitdumps have no effect without `perf record -d`.
    pub unexecutable_dumps: BTreeSet<String>,
    pub regions: BTreeSet<String>,
    /// Objects that `jitsym inject` or `perf inject` has added: address, size and path.
    pub injected: Vec<(u64, u64, String)>,
    /// Whether the process has executable memory without a file.
    pub memory: bool,
    /// Executable memory for which no reader uses a perf map.
    pub hidden: Hidden,
    /// Whether the shared library is mapped.
    pub library: bool,
}

impl Process {
    /// Whether the process had any sign of JIT-compiled code.
    pub fn has_jit(&self) -> bool {
        !self.dumps.is_empty() || !self.regions.is_empty() || !self.injected.is_empty() || self.memory
    }

    fn add(&mut self, mapping: Mapping) {
        let path = mapping.path;
        if jitdump_pid(&path).is_some() {
            let set = if mapping.executable { &mut self.dumps } else { &mut self.unexecutable_dumps };
            set.insert(path);
        } else if is_region(&path) {
            self.regions.insert(path);
        } else if injector(&path).is_some() {
            self.injected.push((mapping.start, mapping.size, path));
        } else if script::file_name(&path).starts_with("libjitsym.so") {
            self.library = true;
        } else if is_memory(&path) {
            self.memory |= mapping.executable;
            if mapping.executable {
                self.hidden.add(&path);
            }
        }
    }
}

/// All processes of a recording that have mappings, and the number of samples.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    pub processes: BTreeMap<u32, Process>,
    pub samples: u64,
    /// The earlier state of processes that have executed a program and have mapped nothing since.
    executed: BTreeMap<u32, Process>,
}

impl Contents {
    /// Reads the events of a recording. Symbols and stacks are not resolved, which makes this fast.
    pub fn read(perf: &Perf, data: &Path) -> Result<Contents, String> {
        let mut command = perf.command("script");
        command.arg("-i").arg(data).args(["--show-mmap-events", "--show-task-events", "-F", "pid,tid"]);
        let mut contents = Contents::default();
        read_lines(perf, &mut command, &mut |line| contents.add(line))?;
        Ok(contents)
    }

    fn add(&mut self, line: &str) {
        if let Some(mapping) = script::mapping(line) {
            if mapping.pid != u32::MAX {
                self.map(mapping);
            }
        } else if let Some((_, task)) = line.split_once("PERF_RECORD_FORK(") {
            // `PID:TID):(PARENT:TID)`. A child begins with the mappings of its parent. Threads have the same pid.
            let ids: Vec<u32> = task.split([':', ')', '(']).filter_map(|id| id.parse().ok()).collect();
            if let [pid, _, parent, _] = ids[..] {
                if pid != parent {
                    // The parent's jitdumps do not belong to the child.
                    let inherited = self.processes.get(&parent).cloned().unwrap_or_default();
                    let child = self.processes.entry(pid).or_default();
                    child.memory |= inherited.memory;
                    child.library |= inherited.library;
                    child.regions.extend(inherited.regions);
                }
            }
        } else if let Some((_, named)) = line.split_once("PERF_RECORD_COMM exec: ") {
            // The line ends with `NAME:PID/TID`. The process executes another program, and loses all mappings of the old
            // program.
            let pid = named.rsplit(':').next().and_then(|ids| ids.split('/').next()?.parse::<u32>().ok());
            if let Some(pid) = pid {
                let before = self.processes.insert(pid, Process::default());
                self.executed.insert(pid, before.unwrap_or_default());
            }
        } else if !line.contains("PERF_RECORD_") && !line.trim().is_empty() {
            self.samples += 1;
        }
    }

    fn map(&mut self, mapping: Mapping) {
        let process = self.processes.entry(mapping.pid).or_default();
        let before = self.executed.remove(&mapping.pid);
        // `jitsym inject` writes such a COMM event before later objects, although the process has executed nothing.
        if let Some(before) = before.filter(|_| injector(&mapping.path) == Some(Injector::Jitsym)) {
            *process = before;
        }
        process.add(mapping);
    }

    /// Processes with compiled code.
    pub fn with_jit(&self) -> impl Iterator<Item = (&u32, &Process)> {
        self.processes.iter().filter(|(_, process)| process.has_jit())
    }

    /// Each jitdump with its process.
    pub fn dumps(&self) -> impl Iterator<Item = (u32, &str)> {
        self.processes.iter().flat_map(|(&pid, process)| process.dumps.iter().map(move |path| (pid, &**path)))
    }

    /// The files of regions that no longer exist.
    pub fn regions_gone(&self) -> Vec<&str> {
        let is_there = |pid: u32, path: &str| open::places(pid, path).iter().any(|path| path.exists());
        let all =
            self.processes.iter().flat_map(|(&pid, process)| process.regions.iter().map(move |path| (pid, &**path)));
        all.filter(|&(pid, path)| !is_there(pid, path)).map(|(_, path)| path).collect()
    }

    /// The program that has added objects, if there are any.
    pub fn injector(&self) -> Option<Injector> {
        self.processes.values().flat_map(|process| &process.injected).find_map(|(.., path)| injector(path))
    }
}

/// The present state of a jitdump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dump {
    /// A jitdump, with the number of its pieces of code and the number of pieces with unwind tables.
    Here {
        path: PathBuf,
        codes: usize,
        with_tables: usize,
    },
    Gone,
    Unreadable(String),
}

/// Examines a jitdump. If the process is alive, also searches its mount namespace.
pub fn dump_of(pid: u32, path: &str) -> Dump {
    open_dump(pid, path).0
}

/// Like `dump_of`, but also returns the open file.
pub fn open_dump(pid: u32, path: &str) -> (Dump, Option<File>) {
    let mut problem = None;
    for path in open::places(pid, path) {
        match open::of_process(&path, pid).and_then(|file| Ok((count(&file)?, file))) {
            Ok((Some((codes, with_tables)), file)) => return (Dump::Here { path, codes, with_tables }, Some(file)),
            Ok((None, _)) => return (Dump::Unreadable("is no jitdump".into()), None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => problem = problem.or(Some(error.to_string())),
        }
    }
    (problem.map_or(Dump::Gone, Dump::Unreadable), None)
}

/// The number of pieces of code, and the number of pieces with unwind tables. `None` if the file is not a jitdump of this
/// machine.
fn count(file: &File) -> io::Result<Option<(usize, usize)>> {
    let mut header = [0; HEADER_SIZE];
    if file.read_exact_at(&mut header, 0).is_err() || Header::read(&header).is_none() {
        return Ok(None);
    }
    let (mut codes, mut with_tables) = (0, 0);
    places(
        HEADER_SIZE as u64..file.metadata()?.len(),
        |bytes, at| file.read_exact_at(bytes, at),
        |place| {
            codes += 1;
            with_tables += usize::from(place.has_tables);
            Ok(())
        },
    )?;
    Ok(Some((codes, with_tables)))
}

/// Runs a command of perf, and passes each line of its output to `found`.
pub fn read_lines(perf: &Perf, command: &mut std::process::Command, found: &mut dyn FnMut(&str)) -> Result<(), String> {
    with_output(perf, command, |output| {
        for line in output.split(b'\n') {
            found(&String::from_utf8_lossy(&line?));
        }
        Ok(())
    })
}

/// Runs a command of perf whose output may not fit into memory.
pub fn with_output(
    perf: &Perf,
    command: &mut std::process::Command,
    read: impl FnOnce(&mut dyn BufRead) -> io::Result<()>,
) -> Result<(), String> {
    let mut child = children::start_piped(command).map_err(|error| perf.cannot_start(&error))?;
    let body = |pipe: &mut dyn io::Read| read(&mut BufReader::with_capacity(1 << 16, pipe));
    let (status, said, result) = children::read(&mut child, body).map_err(|error| error.to_string())?;
    if !status.success() {
        return Err(perf.failure(status, &String::from_utf8(said).unwrap_or_default()));
    }
    result.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pid: u32, protection: &str, path: &str) -> String {
        format!("{pid}/{pid} PERF_RECORD_MMAP2 {pid}/{pid}: [0x1000(0x20) @ 0 00:00 0 0]: {protection} {path}")
    }

    #[test]
    fn events_by_process() {
        let mut contents = Contents::default();
        for line in [
            map(7, "r-xp", "/tmp/jit-7.dump"),
            map(7, "rwxp", "//anon"),
            map(8, "r--p", "/tmp/jit-8.dump"),
            map(9, "r-xp", "/tmp/jit-9-0.so"),
            "7/7 PERF_RECORD_FORK(10:10):(7:7)".into(),
            "9/9 PERF_RECORD_FORK(9:11):(9:9)".into(),
            map(9, "r-xp", "/usr/lib/libc.so.6"),
            " 7/7 ".into(),
            map(12, "rwxp", "//anon"),
            "12/12 PERF_RECORD_COMM exec: a:b:12/12".into(),
            String::new(),
        ] {
            contents.add(&line);
        }
        assert_eq!(contents.dumps().collect::<Vec<_>>(), [(7, "/tmp/jit-7.dump")]);
        assert_eq!(contents.with_jit().map(|(pid, _)| *pid).collect::<Vec<_>>(), [7, 9, 10]);
        assert!(!contents.processes.contains_key(&11) && contents.injector().is_none());
        assert_eq!((contents.samples, contents.processes[&8].unexecutable_dumps.len()), (1, 1));
    }

    /// The COMM event before a later object of `jitsym inject` removes nothing. The COMM event of a real execution removes
    /// all mappings.
    #[test]
    fn later_objects() {
        let mut contents = Contents::default();
        for line in [
            map(13, "r-xs", "/tmp/jit-13.dump"),
            "13/13 PERF_RECORD_COMM exec: a:13/13".into(),
            map(13, "r-xp", "/x/jitcode-13-371b92a4eef8a323982323550f28205e000017d3.so"),
            map(14, "r-xs", "/tmp/jit-14.dump"),
            "14/14 PERF_RECORD_COMM exec: a:14/14".into(),
            map(14, "r-xp", "/usr/bin/a"),
            map(14, "r-xp", "/x/jitcode-14-371b92a4eef8a323982323550f28205e000017d3.so"),
        ] {
            contents.add(&line);
        }
        assert_eq!(contents.dumps().collect::<Vec<_>>(), [(13, "/tmp/jit-13.dump")]);
        assert_eq!(contents.with_jit().map(|(pid, _)| *pid).collect::<Vec<_>>(), [13, 14]);
    }

    #[test]
    fn a_dump_that_is_gone() {
        assert_eq!(dump_of(u32::MAX, "/nowhere/jit-1.dump"), Dump::Gone);
    }
}
