//! Makes an executable file for pages of code. When the file is mapped at the pages, valgrind reads the file. The file has
//! symbols, lines and unwind tables for the code's own addresses.
//!
//! valgrind reads a file when two segments of the file are mapped: one for code and one for data (valgrind 3.19,
//! coregrind/m_debuginfo/debuginfo.c, `VG_(di_notify_mmap)`). valgrind accepts an `.eh_frame` only if the `.eh_frame` lies in
//! one of these segments. So the unwind tables are a `.debug_frame` (readelf.c, `ML_(read_elf_debug_info)`).

use std::ops::Range;

use super::header::{
    elf_header, name_at, program_header, Entry, ELF_HEADER, ET_EXEC, PF_R, PF_W, PF_X, PROGRAM_HEADER, PT_LOAD,
    SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS,
};
use super::object::{section, Function, Parts, NAMES};
use crate::format::cfi::debug_frame::DebugFrame;

/// A file in two parts, between which the bytes of the code lie.
#[derive(Debug)]
pub struct Executable {
    pub head: Vec<u8>,
    /// Offset of the code's bytes in the file.
    pub text_at: u64,
    pub rest: Vec<u8>,
    /// Offset of `rest` in the file.
    pub rest_at: u64,
}

/// The symbols, lines and unwind tables of the functions in a file.
#[derive(Default)]
pub struct Content {
    parts: Parts,
    frames: DebugFrame,
}

impl Content {
    /// Adds a function that lies at least partly in these pages. `None` if there is no memory. Invalid tables and invalid lines
    /// of the function are left out of the file.
    pub fn add(&mut self, function: &Function<'_>, pages: &Range<u64>) -> Option<()> {
        self.parts.head.splits_names = true;
        let end = function.addr.checked_add(function.size)?;
        let symbol = function.addr.max(pages.start)..end.min(pages.end);
        let eh_frame = self.parts.add(function, 1, symbol)?;
        let _ = eh_frame.and_then(|section| self.frames.append(section, (function.addr, function.size)));
        Some(())
    }

    /// Makes the file for code in these pages. `data` is the address of a second mapping of the file's first page. `None` if
    /// there is no memory.
    pub fn executable(&self, pages: &Range<u64>, data: u64, page_size: u64) -> Option<Executable> {
        let (text_at, len) = (page_size, pages.end - pages.start);
        let (text, _) = section(name_at!(".text"), SHT_PROGBITS, 16, &[]);
        let text = Entry { flags: SHF_ALLOC | SHF_EXECINSTR, addr: pages.start, at: text_at, len, ..text };
        let (rest_at, mut rest) = (text_at + len, Vec::new());
        let frames = section(name_at!(".debug_frame"), SHT_PROGBITS, 8, &self.frames.bytes);
        let (count, headers_at) = self.parts.finish([text].into_iter(), frames, rest_at, &mut rest)?;

        let mut head = Vec::new();
        head.try_reserve_exact(usize::from(ELF_HEADER + 2 * PROGRAM_HEADER)).ok()?;
        head.extend_from_slice(&elf_header(ET_EXEC, 2, count, headers_at));
        let mut segments = [(PF_R | PF_X, text_at, pages.start, len), (PF_R | PF_W, 0, data, page_size)];
        // The ELF format requires segments in the order of their addresses.
        if data < pages.start {
            segments.reverse();
        }
        for (flags, at, addr, len) in segments {
            head.extend_from_slice(&program_header(PT_LOAD, flags, [at, addr, addr, len, len, page_size]));
        }
        Some(Executable { head, text_at, rest, rest_at })
    }
}
