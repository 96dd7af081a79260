//! Creates the ELF files from which valgrind reads names and lines. Each file is mapped for a moment at the addresses of its
//! code, in place of the pages that have the code.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::page_groups::Due;
use crate::api::options::{Config, DumpDir};
use crate::format::elf::valgrind_object::Executable;
use crate::format::file_names::FileKind;
use crate::sys::file::{self, Identity};
use crate::sys::held_dir::Dir;
use crate::sys::mapping::page_size;
use crate::sys::valgrind::{self, Tool};
use crate::sys::valgrind_mapping::{exchange, Origin};
use crate::sys::{code_memory, dynamic_symbols, host_fds, maps};

/// The kind of error with which `Files::in_pieces` refuses memory. After this error, the report to valgrind is not repeated.
pub const NOT_FOR_CODE: io::ErrorKind = io::ErrorKind::Unsupported;

pub struct Files {
    pid: u32,
    /// Directories for the files. The sink uses the last directory of the list. If files there cannot be mapped as executable,
    /// the sink removes this directory from the list, unless it is the only one.
    dirs: Vec<PathBuf>,
    dir: Option<Dir>,
    mode: u32,
    /// The identities of the created files, by file number.
    made: Vec<Option<Identity>>,
    /// The last mapping that was found to be ordinary memory, which may contain code.
    known: Range<u64>,
}

impl Files {
    pub fn new(pid: u32) -> Files {
        Files { pid, dirs: Vec::new(), dir: None, mode: 0, made: Vec::new(), known: 0..0 }
    }

    pub fn configure(&mut self, config: &Config) {
        let (DumpDir::Exactly(dir) | DumpDir::CacheBelow(dir)) = &config.dump_dir;
        self.dirs = vec![config.spool_dir.clone(), dir.clone()];
        (self.dir, self.mode) = (None, config.file_mode);
    }

    /// Creates the file of a group of pages, and makes valgrind read the file. `code` has the address ranges of the functions.
    pub fn show(
        &mut self,
        due: &Due,
        executable: &Executable,
        code: impl Iterator<Item = Range<u64>> + Clone,
        data: u64,
    ) -> io::Result<()> {
        loop {
            let shown = self.show_here(due, executable, code.clone(), data);
            let is_noexec = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            if !shown.as_ref().is_err_and(is_noexec) || self.dirs.len() < 2 {
                // A file that valgrind has not read is useless, so it is removed.
                return shown.inspect_err(|_| self.remove_one(due.number));
            }
            self.remove();
            self.dirs.pop();
            self.dir = None;
        }
    }

    fn show_here(
        &mut self,
        due: &Due,
        executable: &Executable,
        code: impl Iterator<Item = Range<u64>>,
        data: u64,
    ) -> io::Result<()> {
        let name = self.name(due.number);
        self.remove_one(due.number);
        let dir = match &mut self.dir {
            Some(dir) if dir.is_open() => dir,
            dir => dir.insert(Dir::open(self.dirs.last().map_or(Path::new("/"), |dir| dir))?),
        };
        let file = file::claim(dir, &name, self.mode, file::ANYWHERE)?;
        let number = due.number as usize;
        if number >= self.made.len() {
            self.made.try_reserve(number + 1 - self.made.len())?;
            self.made.resize(number + 1, None);
        }
        self.made[number] = Some(file::look_at(&file)?);
        let (pages, text_at) = (&due.pages, executable.text_at);
        valgrind::unreported(|| {
            file.write_all_at(&executable.rest, executable.rest_at)?;
            // The code bytes are for users who disassemble the code that a profiler has counted. memcheck, helgrind and DRD are
            // no profilers, so their files get no code bytes. Also, helgrind would report that this thread reads the code
            // without a lock. If some code cannot be read, the bytes of code at higher addresses may be missing too.
            if valgrind::tool() == Tool::Other {
                let inside = code.map(|part| part.start.max(pages.start)..part.end.min(pages.end));
                let _ = code_memory::write_parts(inside, &file, text_at.wrapping_sub(pages.start));
            }
            // The head is written last, so that an incomplete file does not look like a valid one.
            file.write_all_at(&executable.head, 0)
        })?;
        let identity = file::look_at(&file)?;
        let path = self.dirs.last().map(|dir| dir.join(&name)).unwrap_or_default();
        let done = Mutex::new((self, Ok(())));
        // valgrind reads the name of the file from `/proc/self/fd`, so the file is opened in the host's descriptor table.
        host_fds::run(&|| {
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.1 = valgrind::unreported(|| {
                let file = file::open_same(&path, identity)?;
                let origin = Origin { file: &file, text_at, data };
                // SAFETY: the sink runs only under valgrind, and the page `data` is from `data_page`.
                done.0.in_pieces(pages, |pieces| unsafe { exchange(pieces, Some(&origin)) })
            });
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Divides pages into pieces that each lie in one mapping, and passes all pieces together to `body`. Refuses memory that is
    /// not mapped or has another use: files of the program, the heap, and stacks.
    pub fn in_pieces(
        &mut self,
        pages: &Range<u64>,
        mut body: impl FnMut(&[Range<u64>]) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_known = self.known.start <= pages.start && pages.end <= self.known.end;
        // These errors mean that a piece does not lie in one mapping. The mappings may have changed since they were examined.
        let are_several = |result: &io::Result<()>| {
            let code = result.as_ref().err().and_then(io::Error::raw_os_error);
            matches!(code, Some(libc::EINVAL | libc::EFAULT))
        };
        if is_known {
            let result = body(std::slice::from_ref(pages));
            if !are_several(&result) {
                return result;
            }
        }
        self.known = 0..0;
        let maps = maps::within(pages.start, pages.end)?;
        // valgrind gives the program a separate heap, which the kernel does not name `[heap]`.
        let heap_end = code_memory::heap_end();
        let is_heap = |map: &maps::Mapping| map.start < heap_end && heap_end <= map.end;
        let is_code = |map: &maps::Mapping| {
            !map.special && !is_heap(map) && dynamic_symbols::object_at(map.start.max(pages.start)).is_none()
        };
        let mapped: u64 = maps.iter().map(|map| map.len_within(pages.start, pages.end)).sum();
        if mapped != pages.end - pages.start || !maps.iter().all(is_code) {
            return Err(io::Error::new(
                NOT_FOR_CODE,
                "it lies in memory that is not mapped, or part of a program, a heap or a stack",
            ));
        }
        let mut pieces = Vec::new();
        pieces.try_reserve(maps.len())?;
        pieces.extend(maps.iter().map(|map| map.start.max(pages.start)..map.end.min(pages.end)));
        let result = body(&pieces);
        if !are_several(&result) {
            if let [map] = &maps[..] {
                self.known = map.start..map.end;
            }
            return result;
        }
        // valgrind may divide one mapping of the kernel into several mappings. So each page is now passed as a separate piece.
        let page = page_size();
        let mut each = Vec::new();
        each.try_reserve((pages.end - pages.start) as usize / page)?;
        each.extend(pages.clone().step_by(page).map(|start| start..start + page as u64));
        body(&each)
    }

    fn name(&self, number: u32) -> OsString {
        FileKind::ForValgrind { number }.name(self.pid).into()
    }

    /// Removes the files that were created.
    pub fn remove(&mut self) {
        (0..self.made.len() as u32).for_each(|number| self.remove_one(number));
    }

    fn remove_one(&mut self, number: u32) {
        let name = self.name(number);
        let Some(identity) = self.made.get_mut(number as usize).and_then(Option::take) else { return };
        let Some(dir) = self.dir.as_ref() else { return };
        if dir.identity_of(&name).is_ok_and(|found| identity.is(&found)) {
            // A failure to remove the file is ignored.
            let _ = dir.remove(&name);
        }
    }
}
