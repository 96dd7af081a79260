//! What the library does with unwind descriptions: how much room their tables take, and a cache of encoded tables.

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use crate::api::code::{FixedFrame, SavedRegister, Unwind};
use crate::api::error::{Error, Result};
use crate::format::arch::{Arch, NATIVE};
use crate::format::cfi::{self, Frame, Tables};
use crate::format::jitdump::UnwindingTemplate;

/// Bytes after code of `code_size` bytes that tables of `tables_len` bytes take: they start at the first multiple of 8 from the
/// code's start, where perf's ELF file has them (linux tools/perf/util/jitdump.c, `jit_repipe_code_load`).
pub fn room(code_size: u64, tables_len: usize) -> u64 {
    code_size.wrapping_neg() % 8 + tables_len as u64
}

/// Bytes that must be free after code of `code_size` bytes to hold its tables, alignment included. A size of 0 gives as many as
/// are enough for any size. The result is 0 if there are no tables.
///
/// Which entries of an `.eh_frame` section are used is only known with the address of the code, so all are counted.
pub fn room_needed(unwind: &Unwind, code_size: u64) -> Result<u64> {
    if matches!(unwind, Unwind::None) {
        return Ok(0);
    }
    let arch = NATIVE.ok_or(Error::Arch)?;
    if code_size == 0 {
        return Ok(7 + cfi::size_bound(arch, unwind)? as u64);
    }
    cfi::check_code_size(code_size)?;
    let tables_len = match unwind {
        Unwind::EhFrame { .. } => cfi::size_bound(arch, unwind)?,
        _ => cfi::encode(arch, unwind, 0, code_size)?.map_or(0, |tables| tables.bytes.len()),
    };
    Ok(room(code_size, tables_len))
}

/// A `jitsym_unwind` as the caller has it, word by word after its size: the same again means the same tables.
pub type Raw = [u64; RAW_WORDS];

/// Their number.
pub const RAW_WORDS: usize = 12;

/// The description that was used last as its caller gave it, and the record of its tables.
#[derive(Debug)]
#[repr(C)]
struct Recent {
    template: UnwindingTemplate,
    /// The entry that it was made of.
    entry: usize,
    raw: Raw,
    saved: Vec<SavedRegister>,
    /// The smallest code that it was found good for; `u64::MAX` if the caller's form is not known.
    least: u64,
}

impl Default for Recent {
    fn default() -> Recent {
        let template = UnwindingTemplate::empty();
        Recent { template, entry: usize::MAX, raw: Raw::default(), saved: Vec::new(), least: u64::MAX }
    }
}

impl Recent {
    /// Written out: of `==`, and of a loop, compilers that care for size make twice as many instructions.
    ///
    /// # Safety
    /// There is one, which need not be aligned.
    #[inline(always)]
    unsafe fn is(&self, raw: *const Raw) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
            // SAFETY: the caller's promise. The instructions are SSE2, a part of x86-64, and both have six times 16 bytes.
            let same = |at: usize| unsafe {
                let of = |raw: *const Raw| _mm_loadu_si128(raw.cast::<u64>().add(2 * at).cast());
                _mm_cmpeq_epi8(of(&self.raw), of(raw))
            };
            // SAFETY: as above.
            let both = |a, b| unsafe { _mm_and_si128(a, b) };
            let all = both(both(same(0), same(1)), both(both(same(2), same(3)), both(same(4), same(5))));
            // SAFETY: as above.
            unsafe { _mm_movemask_epi8(all) == 0xffff }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            // SAFETY: the caller's promise.
            let (a, b) = (self.raw, unsafe { raw.read_unaligned() });
            let differs = |at: usize| (a[at] ^ b[at]) | (a[at + 1] ^ b[at + 1]) | (a[at + 2] ^ b[at + 2]);
            differs(0) | differs(3) | differs(6) | differs(9) == 0
        }
    }
}

/// Descriptions with a longer key are not kept.
const KEY_WORDS: usize = 128;

/// Entries kept; a runtime has a handful of frame layouts, if it does not have one for each function.
const ENTRIES: usize = 16;

/// Tables of the descriptions that were used last, so that code after code with the same prologue is described without
/// encoding anything and without allocating. For one thread; takes no memory until it is used.
#[derive(Debug, Default)]
pub struct Cache {
    entries: Vec<Entry>,
    /// Key of the current description.
    key: Vec<u32>,
    /// Entry that was used last.
    recent: usize,
    /// What is copied if that is asked for again.
    ready: Recent,
    /// Entry to be replaced next.
    oldest: usize,
    /// Tables that are not kept beyond the call.
    passing: Option<Tables>,
}

#[derive(Debug)]
struct Entry {
    key: Vec<u32>,
    tables: Tables,
}

impl Cache {
    /// What [`cfi::encode`] makes of the description on this architecture, perhaps for code of another size: to be copied for
    /// code of this size (`Tables::copy_to`).
    ///
    /// Fails as [`cfi::encode`] does, and with `Arch`.
    pub fn tables<'c>(&'c mut self, unwind: &Unwind, code_addr: u64, code_size: u64) -> Result<Option<&'c Tables>> {
        if matches!(unwind, Unwind::None) {
            return Ok(None);
        }
        let arch = NATIVE.ok_or(Error::Arch)?;
        cfi::check_code_size(code_size)?;
        if self.describe(arch, unwind, code_size)? {
            match self.find() {
                Some(index) => self.recent = index,
                None => match cfi::encode(arch, unwind, code_addr, code_size)? {
                    Some(tables) => self.keep(tables),
                    None => return Ok(None),
                },
            }
            let tables = &self.entries.get(self.recent).ok_or(Error::Internal)?.tables;
            tables.check_size(code_size)?;
            return Ok(Some(tables));
        }
        // What is remembered would be of another entry.
        self.recent = usize::MAX;
        self.passing = cfi::encode(arch, unwind, code_addr, code_size)?;
        Ok(self.passing.as_ref())
    }

    /// As `tables`, for a record that is copied whole. `TooLarge` also if there can be no template of it.
    pub fn template(&mut self, unwind: &Unwind, code_addr: u64, code_size: u64) -> Result<Option<&UnwindingTemplate>> {
        // There is none of what is not kept.
        if matches!(unwind, Unwind::EhFrame { .. }) {
            return Err(Error::TooLarge);
        }
        if self.tables(unwind, code_addr, code_size)?.is_none() {
            return Ok(None);
        }
        let entry = self.entries.get(self.recent).ok_or(Error::TooLarge)?;
        if self.ready.entry != self.recent {
            let template = UnwindingTemplate::new(&entry.tables).ok_or(Error::TooLarge)?;
            (self.ready.template, self.ready.entry, self.ready.least) = (template, self.recent, u64::MAX);
        }
        Ok(Some(&self.ready.template))
    }

    /// Whether the description of `ready_template` was given in this raw form, but perhaps for the registers saved, and was found
    /// good for code that is not larger. Most runtimes have one frame layout, and give it again and again.
    ///
    /// # Safety
    /// There is one, which need not be aligned.
    #[inline(always)]
    pub unsafe fn is_ready(&self, raw: *const Raw, code_size: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.ready.is(raw) && code_size >= self.ready.least && self.ready.template.is_for(code_size) }
    }

    /// Whether it saves these registers, too.
    #[inline(always)]
    pub fn ready_saves(&self, saved: &[SavedRegister]) -> bool {
        // Most save none, for which `==` would call a function.
        let known = &self.ready.saved;
        known.len() == saved.len() && (saved.is_empty() || known == saved)
    }

    /// The template that was asked for last.
    #[inline(always)]
    pub fn ready_template(&self) -> &UnwindingTemplate {
        &self.ready.template
    }

    /// Remembers that the description whose template was asked for last has this raw form. Its tables must not depend on the size
    /// of the code except for that size itself.
    pub fn remember(&mut self, raw: &Raw, saved: &[SavedRegister], code_size: u64) {
        (self.ready.raw, self.ready.least) = (*raw, code_size);
        // In the memory that it has: runtimes with several frame layouts come by here.
        self.ready.saved.clear();
        self.ready.saved.extend_from_slice(saved);
    }

    /// Makes the key: all that the tables depend on but the size of the code. `false` if the description is not to be kept.
    ///
    /// Places are checked against the size here, because they were checked against another one when the entry was made.
    fn describe(&mut self, arch: Arch, unwind: &Unwind, code_size: u64) -> Result<bool> {
        self.key.clear();
        self.key.reserve(KEY_WORDS);
        match unwind {
            Unwind::FramePointer(fp) => {
                let frame = Frame::resolve(arch, fp, code_size)?;
                let Frame { pushed, set, saved_from, epilogue_begin, epilogue_end, cfa_offset, saved } = frame;
                let words = [1, pushed, set, saved_from, epilogue_begin, epilogue_end, cfa_offset as u32];
                Ok(self.put(&words, saved))
            }
            Unwind::FixedFrame(fixed) => {
                let FixedFrame {
                    cfa_offset,
                    saved,
                    pushed,
                    sp_set,
                    saved_from,
                    sp_reset,
                    epilogue_begin,
                    epilogue_end,
                } = cfi::resolve_fixed(arch, fixed, code_size)?;
                let words = [2, cfa_offset as u32, pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end];
                Ok(self.put(&words, saved))
            }
            Unwind::Rows(rows) => {
                if rows.last().is_some_and(|row| u64::from(row.offset) >= code_size) {
                    return Err(Error::UnwindOrder);
                }
                // The number of registers makes the key unambiguous; one that is cut does not fit anyway.
                Ok(self.put(&[3], &[])
                    && rows.iter().all(|row| {
                        let words = [row.offset, row.cfa_register, row.cfa_offset as u32, row.saved.len() as u32];
                        self.put(&words, row.saved)
                    }))
            }
            Unwind::None | Unwind::EhFrame { .. } => Ok(false),
        }
    }

    /// Appends to the key; `false` if it would become too long.
    fn put(&mut self, words: &[u32], saved: &[SavedRegister]) -> bool {
        let room = KEY_WORDS - self.key.len();
        if words.len() > room || saved.len() > (room - words.len()) / 2 {
            return false;
        }
        self.key.extend_from_slice(words);
        // At once: a loop takes more than twice as many instructions.
        // SAFETY: a register is two words in C's layout, and any word is a u32.
        self.key.extend_from_slice(unsafe { std::slice::from_raw_parts(saved.as_ptr().cast(), 2 * saved.len()) });
        true
    }

    /// The entry with the key, the one that was used last being tried first.
    fn find(&self) -> Option<usize> {
        if self.entries.get(self.recent).is_some_and(|entry| entry.key == self.key) {
            return Some(self.recent);
        }
        self.entries.iter().position(|entry| entry.key == self.key)
    }

    /// Adds an entry, in place of the oldest one if all are taken.
    fn keep(&mut self, tables: Tables) {
        let entry = Entry { key: self.key.clone(), tables };
        match self.entries.get_mut(self.oldest) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        self.recent = self.oldest;
        if self.ready.entry == self.recent {
            self.ready.entry = usize::MAX;
        }
        self.oldest = (self.oldest + 1) % ENTRIES;
    }
}
