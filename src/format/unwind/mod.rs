//! A cache of encoded unwind tables, so that a frame that many functions share is encoded once.

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

use crate::api::code::{FixedFrame, FramePointer, SavedRegister, SigningKey, Unwind};
use crate::api::error::{Error, Result};
use crate::format::arch::{Arch, NATIVE};
use crate::format::cfi::{self, Tables};
use crate::format::jitdump::UnwindingTemplate;

/// The words of a caller's `jitsym_unwind` after its size field, each of the size of a pointer. Descriptions with equal words may have different tables,
/// because some of the words are pointers, for example to the saved registers.
pub type Raw = [usize; RAW_WORDS];

pub const RAW_WORDS: usize = if size_of::<usize>() == 8 { 12 } else { 19 };

/// The description that was used last, as the words of the caller's struct, and a template of the UNWINDING_INFO record for
/// this description.
#[derive(Debug)]
#[repr(C)]
struct Recent {
    template: UnwindingTemplate,
    /// Index of the cache entry that the template was made from.
    entry: usize,
    raw: Raw,
    saved: Vec<SavedRegister>,
    /// The smallest code size for which the description is known to be valid, or `u64::MAX` if `raw` is not set.
    least: u64,
}

impl Default for Recent {
    fn default() -> Recent {
        let template = UnwindingTemplate::empty();
        Recent { template, entry: usize::MAX, raw: Raw::default(), saved: Vec::new(), least: u64::MAX }
    }
}

impl Recent {
    /// Whether the words are equal to the remembered words. The comparison is written out, because compilers that optimize for
    /// size make twice as many instructions for `==` or a loop.
    ///
    /// # Safety
    /// `raw` points to a readable `Raw`, which need not be aligned.
    #[inline(always)]
    unsafe fn is(&self, raw: *const Raw) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
            // SAFETY: the caller's promise. All instructions here are SSE2, a part of x86-64. A `Raw` has 96 bytes, so six
            // vectors of 16 bytes can be read from it.
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
            // Only words of 32 bits are more than twelve.
            let rest = a[12..].iter().zip(&b[12..]).fold(0, |differs, (a, b)| differs | (a ^ b));
            differs(0) | differs(3) | differs(6) | differs(9) | rest == 0
        }
    }
}

/// The maximum length of a key, in words. Descriptions with a longer key are not cached.
const KEY_WORDS: usize = 128;

/// The capacity of the cache. Runtimes have either a few frame layouts, or a different layout for each function. If each
/// function has its own layout, a larger cache would not help.
const ENTRIES: usize = 16;

/// Keeps the tables of the descriptions that were encoded last. If code has one of these descriptions, nothing is encoded,
/// and no memory is allocated. Each thread has its own cache. The cache allocates nothing until its first use.
#[derive(Debug, Default)]
pub struct Cache {
    entries: Vec<Entry>,
    /// The key of the description that the caller has passed to the current call.
    key: Vec<u32>,
    /// Index of the entry that was used last.
    recent: usize,
    /// The template of the record that is copied if the last description is used again.
    ready: Recent,
    /// Index of the entry that is replaced next.
    oldest: usize,
    /// The tables that were encoded last for a description that must not be cached.
    passing: Option<Tables>,
}

#[derive(Debug)]
struct Entry {
    key: Vec<u32>,
    tables: Tables,
}

impl Cache {
    /// Returns the tables that [`cfi::encode`] makes of the description on this architecture. The cache may have made these
    /// tables for code of another size. So the caller must copy the tables with `Tables::copy_to`, which adapts the copy to
    /// the size.
    ///
    /// Returns the errors of [`cfi::encode`]. Also returns `Arch` if the library cannot write unwind tables for this
    /// architecture.
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
        // This description has no entry, so `recent` must not be the index of an entry.
        self.recent = usize::MAX;
        self.passing = cfi::encode(arch, unwind, code_addr, code_size)?;
        Ok(self.passing.as_ref())
    }

    /// Like `tables`, but returns a template of the record. Also returns `TooLarge` if no template can be made.
    pub fn template(&mut self, unwind: &Unwind, code_addr: u64, code_size: u64) -> Result<Option<&UnwindingTemplate>> {
        // Tables from an `.eh_frame` section are not cached, so they have no template.
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

    /// Returns true if `raw` equals the words that the last call of `remember` has stored, and the description is known to be
    /// valid for code of this size. Most runtimes have one frame layout, and pass it again and again. The caller must also
    /// check the saved registers, with `ready_saves`.
    ///
    /// # Safety
    /// `raw` points to a readable `Raw`, which need not be aligned.
    #[inline(always)]
    pub unsafe fn is_ready(&self, raw: *const Raw, code_size: u64) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.ready.is(raw) && code_size >= self.ready.least && self.ready.template.is_for(code_size) }
    }

    /// Whether `saved` is equal to the saved registers that the last call of `remember` has stored.
    #[inline(always)]
    pub fn ready_saves(&self, saved: &[SavedRegister]) -> bool {
        // Most descriptions save no registers. `==` would call a function even to compare two empty lists.
        let known = &self.ready.saved;
        known.len() == saved.len() && (saved.is_empty() || known == saved)
    }

    /// Returns the most recent template that the method `template` has returned.
    #[inline(always)]
    pub fn ready_template(&self) -> &UnwindingTemplate {
        &self.ready.template
    }

    /// Stores the words and the saved registers of the description that was passed to the last call of `template`. The tables
    /// must depend only on `raw`, `saved` and the code size. For larger code, only the fields that contain the code's size and
    /// the distances to the code may differ.
    pub fn remember(&mut self, raw: &Raw, saved: &[SavedRegister], code_size: u64) {
        (self.ready.raw, self.ready.least) = (*raw, code_size);
        // The vector `ready.saved` keeps its memory, because runtimes with several frame layouts call this function often.
        self.ready.saved.clear();
        self.ready.saved.extend_from_slice(saved);
    }

    /// Makes the key of a description. The tables depend only on the values in the key and on the code size. Returns `false`
    /// if the description must not be cached.
    ///
    /// Also checks that the offsets in the description are in the code, because an entry's tables may have been made for
    /// another code size.
    fn describe(&mut self, arch: Arch, unwind: &Unwind, code_size: u64) -> Result<bool> {
        self.key.clear();
        self.key.reserve(KEY_WORDS);
        match unwind {
            Unwind::FramePointer(fp) => {
                let frame = cfi::resolve_frame_pointer(arch, fp, code_size)?;
                let FramePointer { pushed, set, saved_from, epilogue_begin, epilogue_end, cfa_offset, saved, signed } =
                    frame;
                let head = head(1, signed);
                let words = [head, pushed, set, saved_from, epilogue_begin, epilogue_end, cfa_offset as u32];
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
                    signed,
                } = cfi::resolve_fixed(arch, fixed, code_size)?;
                let head = head(2, signed);
                let words =
                    [head, cfa_offset as u32, pushed, sp_set, saved_from, sp_reset, epilogue_begin, epilogue_end];
                Ok(self.put(&words, saved))
            }
            Unwind::Rows(rows) => {
                if rows.last().is_some_and(|row| u64::from(row.offset) >= code_size) {
                    return Err(Error::UnwindOrder);
                }
                // The number of saved registers makes the key unambiguous. If the number does not fit in 32 bits, its cut is
                // harmless, because the key is too long anyway.
                Ok(self.put(&[3], &[])
                    && rows.iter().all(|row| {
                        let words = [row.offset, row.cfa_register, row.cfa_offset as u32, row.saved.len() as u32];
                        self.put(&words, row.saved)
                    }))
            }
            Unwind::None | Unwind::EhFrame { .. } => Ok(false),
        }
    }

    /// Appends to the key. Returns `false` if the key would become too long.
    fn put(&mut self, words: &[u32], saved: &[SavedRegister]) -> bool {
        let room = KEY_WORDS - self.key.len();
        if words.len() > room || saved.len() > (room - words.len()) / 2 {
            return false;
        }
        self.key.extend_from_slice(words);
        // All registers are appended by one call, because a loop takes more than twice as many instructions.
        // SAFETY: a register consists of two 32-bit words in C's layout, and any bit pattern of a word is a valid `u32`.
        self.key.extend_from_slice(unsafe { std::slice::from_raw_parts(saved.as_ptr().cast(), 2 * saved.len()) });
        true
    }

    /// Returns the index of the entry with the current key. First tries the entry that was used last.
    fn find(&self) -> Option<usize> {
        if self.entries.get(self.recent).is_some_and(|entry| entry.key == self.key) {
            return Some(self.recent);
        }
        self.entries.iter().position(|entry| entry.key == self.key)
    }

    /// Adds an entry. If the cache is full, replaces the oldest entry.
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

/// The first word of a cache key, which contains the kind of the description and the key that signs the return address, if any.
fn head(kind: u32, signed: Option<SigningKey>) -> u32 {
    let signed = match signed {
        None => 0,
        Some(SigningKey::A) => 1,
        Some(SigningKey::B) => 2,
    };
    kind | signed << 8
}
