//! Examines the present jitdumps of a recording: their code, its times, and the rules of `jitsym check` that they break.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};

use jitsym::format::arch::ELF_MACHINE;
use jitsym::format::file_names::FileKind;
use jitsym::format::jitdump::raw::{RawHeader, RawRecords};

use super::broken::Broken;
use super::{machine, Rank, Report, RECORD};
use crate::check::{check, Facts};
use crate::open;
use crate::record::contents::{open_dump, Contents, Dump};
use crate::record::script::of_path;
use crate::text::{count, shortened};

/// Larger files are not examined.
const MOST: u64 = 256 << 20;

/// A piece of code in the form in which it was registered.
#[derive(Clone, Debug)]
pub struct Piece {
    pub name: String,
    pub addr: u64,
    pub size: u64,
    /// The time of registration, in nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
}

/// The jitdumps of a recording in their present state.
#[derive(Default)]
pub struct Dumps {
    /// The jitdumps that exist.
    pub paths: Vec<PathBuf>,
    pub codes: usize,
    pub with_tables: usize,
    pub gone: Vec<String>,
    pub unreadable: Vec<String>,
    /// A jitdump whose times are raw counter values.
    pub counter: Option<String>,
    /// The pieces of each process, sorted by address.
    pub pieces: HashMap<u32, Vec<Piece>>,
    pub broken: Broken,
    /// Whether a jitdump is too large to be examined.
    pub are_too_large: bool,
}

impl Dumps {
    /// Reads all jitdumps to which the recording refers. After `perf inject`, a jitdump is found only by the objects beside
    /// it.
    pub fn read(contents: &Contents, variables: machine::Variables, report: &mut Report) -> Dumps {
        let mut dumps = Dumps::default();
        let injected = contents.processes.iter().flat_map(|(&pid, process)| {
            process.injected.iter().filter_map(move |(.., object)| Some((pid, jitdump_of(object)?)))
        });
        let injected: BTreeSet<(u32, String)> = injected.collect();
        for (pid, path) in contents.dumps().map(|(pid, path)| (pid, path.to_owned())).chain(injected.iter().cloned()) {
            let (dump, file) = open_dump(pid, &path);
            match dump {
                Dump::Here { codes, with_tables, path: here } => {
                    let line = format!("{path}: {} of code, {with_tables} with unwind tables", count(codes, "piece"));
                    match with_tables {
                        0 if codes > 0 && variables.no_unwind => report.cause(
                            line,
                            Rank::Recording,
                            "JITSYM_UNWIND=0 is in the environment: no unwind tables are written",
                            format!("unset JITSYM_UNWIND; {RECORD}"),
                        ),
                        0 => report.note(line),
                        _ => report.good(line),
                    }
                    if let Some(file) = file {
                        dumps.go_through(pid, &here, &path, &file, report);
                    }
                    dumps.paths.push(here);
                    dumps.codes += codes;
                    dumps.with_tables += with_tables;
                }
                _ if injected.contains(&(pid, path.clone())) => {}
                Dump::Gone => dumps.gone.push(path),
                Dump::Unreadable(error) => dumps.unreadable.push(format!("{path}: {error}")),
            }
        }
        for (&pid, process) in &contents.processes {
            process.regions.iter().for_each(|path| dumps.region(pid, path));
            for path in process.unexecutable_dumps.difference(&process.dumps) {
                report.bad(format!("{path} is mapped without execution: perf does not take that for a jitdump"));
            }
        }
        dumps
    }

    /// Examines the file of a region, if the file is not too large.
    fn region(&mut self, pid: u32, path: &str) {
        let found = open::places(pid, path).into_iter().find_map(|path| {
            let file = open::of_process(&path, pid)
                .ok()
                .filter(|file| file.metadata().is_ok_and(|data| data.len() <= MOST))?;
            Some((open::read(&file).ok()?, path))
        });
        if let Some((bytes, path)) = found {
            self.broken.begin(&path, true);
            check(&bytes, &Facts::default(), &mut self.broken);
        }
    }

    fn go_through(&mut self, pid: u32, here: &Path, path: &str, file: &File, report: &mut Report) {
        if file.metadata().is_ok_and(|data| data.len() > MOST) {
            self.are_too_large = true;
            report.note(format!("{path} is too large to be gone through here: `jitsym check` does it"));
            return;
        }
        let Ok(bytes) = open::read(file) else { return };
        let Some(header) = RawHeader::read(&bytes) else { return };
        if header.arch_timestamp() {
            self.counter.get_or_insert_with(|| path.to_owned());
        }
        if header.machine != ELF_MACHINE {
            report.cause(
                format!("{path}: its machine is {}, and this one is {ELF_MACHINE}", header.machine),
                Rank::Minor,
                format!(
                    "{path} has the number of another machine ({}; this one is {ELF_MACHINE}): samply and others read its code as \
                     that of the other machine",
                    header.machine
                ),
                format!("jitsym check {path}"),
            );
        }
        let pieces = self.pieces.entry(pid).or_default();
        for record in RawRecords::new(&bytes, &header) {
            if let Some(load) = record.load() {
                let name = shortened(load.name().unwrap_or_default()).to_string();
                pieces.push(Piece { name, addr: load.addr, size: load.size, time: record.timestamp });
            }
        }
        pieces.sort_by_key(|piece| (piece.addr, piece.time));
        // The last record of a living process may be incomplete.
        let grows = Path::new("/proc").join(pid.to_string()).exists();
        self.broken.begin(here, grows);
        check(&bytes, &Facts::default(), &mut self.broken);
    }

    /// The pieces of a process at an address.
    pub fn at(&self, pid: u32, addr: u64) -> impl Iterator<Item = &Piece> {
        let pieces = self.pieces.get(&pid).map_or(&[][..], Vec::as_slice);
        let end = pieces.partition_point(|piece| piece.addr <= addr);
        // Few pieces overlap, and overlapping pieces are close together.
        let near = pieces[end.saturating_sub(NEAR)..end].iter().rev();
        near.filter(move |piece| addr - piece.addr < piece.size)
    }

    /// The piece that begins nearest to an address which no piece covers, and the distance of the address from the piece's
    /// start.
    pub fn nearest(&self, pid: u32, addr: u64) -> Option<(&Piece, i64)> {
        let pieces = self.pieces.get(&pid)?;
        let at = pieces.partition_point(|piece| piece.addr <= addr);
        let near = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|at| pieces.get(at));
        near.map(|piece| (piece, addr.wrapping_sub(piece.addr) as i64)).min_by_key(|(_, from)| from.unsigned_abs())
    }
}

/// The number of pieces below an address that are examined.
const NEAR: usize = 64;

/// The jitdump from which `DIR/jitted-PID-INDEX.so` was made.
pub fn jitdump_of(object: &str) -> Option<String> {
    let (dir, _) = object.rsplit_once('/')?;
    let Some((pid, FileKind::Injected { .. })) = of_path(object) else { return None };
    Some(format!("{dir}/{}", FileKind::Jitdump { zeros: 0 }.name(pid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_jitdump_of_an_object() {
        assert_eq!(jitdump_of("/tmp/jitted-12-34.so").as_deref(), Some("/tmp/jit-12.dump"));
        assert_eq!(jitdump_of("/tmp/x-12-34.so"), None);
    }

    #[test]
    fn pieces_by_address() {
        let piece = |name: &str, addr, size| Piece { name: name.into(), addr, size, time: 0 };
        let mut dumps = Dumps::default();
        dumps.pieces.insert(7, vec![piece("a", 100, 20), piece("b", 110, 5), piece("c", 200, 8)]);
        let names = |addr| dumps.at(7, addr).map(|piece| &*piece.name).collect::<Vec<_>>();
        assert_eq!((names(99), names(112), names(116), names(208)), (vec![], vec!["b", "a"], vec!["a"], vec![]));
        assert_eq!(dumps.nearest(7, 90).map(|(piece, from)| (&*piece.name, from)), Some(("a", -10)));
        assert_eq!(dumps.nearest(7, 216).map(|(piece, from)| (&*piece.name, from)), Some(("c", 16)));
        assert!(dumps.nearest(8, 90).is_none());
    }
}
