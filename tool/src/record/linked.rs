//! Determines whether a program or one of its libraries uses libjitsym: it is linked with libjitsym, or can load it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use object::read::elf::Dyn;
use object::read::elf::ElfFile64;
use object::{Endianness, ReadCache};

use crate::open;

/// Strings in programs that use the library. Programs that are linked with the shared library, or load it (`jitsym_dl.h`),
/// contain the first string. Programs that are linked with the static library contain the second string.
const MARKS: [&[u8]; 2] = [b"libjitsym.so", b"JITSYM_SPOOL_DIR"];
/// Larger files are not searched to their end.
const MOST: u64 = 512 << 20;
const CHUNK: usize = 1 << 20;
/// The directories of libraries, in addition to the directories in the program itself.
const DIRS: [&str; 8] = [
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Whether the program, or a library in its list of libraries, contains a mark of libjitsym.
pub fn uses_library(program: &Path) -> bool {
    let is_marked = |path: &Path| open::named(path).and_then(|file| has_mark(&file)).unwrap_or(false);
    is_marked(program) || libraries(program).unwrap_or_default().iter().any(|path| is_marked(path))
}

fn has_mark(file: &File) -> io::Result<bool> {
    let longest = MARKS.iter().map(|mark| mark.len()).max().unwrap_or(0);
    let (mut file, mut buffer, mut kept) = (file.take(MOST), vec![0; CHUNK], 0);
    loop {
        let read = file.read(&mut buffer[kept..])?;
        if read == 0 {
            return Ok(false);
        }
        let filled = &buffer[..kept + read];
        if MARKS.iter().any(|mark| contains(filled, mark)) {
            return Ok(true);
        }
        // A mark may extend over two reads.
        let (end, rest) = (filled.len(), longest.min(filled.len()));
        buffer.copy_within(end - rest..end, 0);
        kept = rest;
    }
}

/// Whether the bytes contain a text. The C library searches faster than `windows`, which matters for programs of 100 MB.
fn contains(bytes: &[u8], text: &[u8]) -> bool {
    // SAFETY: both ranges are valid for their lengths, and the call only reads them.
    unsafe { !libc::memmem(bytes.as_ptr().cast(), bytes.len(), text.as_ptr().cast(), text.len()).is_null() }
}

/// The files of the libraries in the program's own list.
fn libraries(program: &Path) -> Option<Vec<PathBuf>> {
    let cache = ReadCache::new(open::named(program).ok()?);
    let file = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = file.endian();
    let sections = file.elf_section_table();
    let (dynamic, index) = sections.dynamic(endian, &cache).ok()??;
    let strings = sections.strings(endian, &cache, index).ok()?;
    let (mut names, mut dirs) = (Vec::new(), Vec::new());
    for entry in dynamic {
        let text = || entry.string(endian, strings).ok().and_then(|text| std::str::from_utf8(text).ok());
        match entry.tag(endian) {
            object::elf::DT_NEEDED => names.extend(text()),
            object::elf::DT_RPATH | object::elf::DT_RUNPATH => {
                dirs.extend(text().into_iter().flat_map(|text| text.split(':')))
            }
            _ => {}
        }
    }
    let real = program.canonicalize().ok()?;
    let origin = real.parent()?.to_str()?;
    let mut dirs: Vec<PathBuf> =
        dirs.iter().map(|dir| dir.replace("$ORIGIN", origin).replace("${ORIGIN}", origin).into()).collect();
    dirs.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    dirs.extend(DIRS.map(PathBuf::from));
    let find = |name: &&str| dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
    // The C library is large, and is in every program.
    Some(names.iter().filter(|name| !name.starts_with("libc.so")).filter_map(find).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PrivateDir;
    use std::fs;

    #[test]
    fn marks_anywhere_in_a_file() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-linked-").unwrap();
        let path = dir.path().join("program");
        for before in [0, 1, CHUNK - 20, CHUNK - 6, CHUNK, 2 * CHUNK - 3] {
            for mark in MARKS {
                fs::write(&path, [&vec![b'.'; before][..], mark, b"."].concat()).unwrap();
                assert!(uses_library(&path), "{before}");
                fs::write(&path, [&vec![b'.'; before][..], &mark[1..]].concat()).unwrap();
                assert!(!uses_library(&path), "{before}");
            }
        }
        assert!(!uses_library(Path::new("/nowhere")) && !uses_library(dir.path()));
    }

    #[test]
    fn libraries_of_a_program() {
        let sh = Path::new("/bin/ls");
        let found = libraries(sh).unwrap();
        assert!(found.iter().all(|path| path.is_file()), "{found:?}");
        assert!(!uses_library(sh));
    }
}
