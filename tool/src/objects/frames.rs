//! Makes the unwind tables of a file: the tables of all its code, with shared CIEs, and one search table.

use jitsym::format::arch::{Arch, NATIVE};
use jitsym::format::cfi::encode;
use jitsym::format::elf::eh_frame_hdr::{Places, Row, HEAD_SIZE, ROW_SIZE};
use jitsym::format::elf::frames::{Frames, Target};
use jitsym::Unwind;

use super::Load;
use crate::tables;

/// The size of the mark at the end of `.eh_frame`.
const END: usize = 4;
/// The offset of the code's address in an FDE.
const FDE_ADDR: usize = 8;

/// The sections. The offsets of the sections are known only after their sizes.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The addresses in it are computed as if the first code began at the start of the section.
    eh_frame: Vec<u8>,
    /// Sorted by the address of the code.
    rows: Vec<Row>,
    /// Whether the file has a search table even if it is empty. With an empty search table, perf 6 follows frame pointers
    /// through the code. Without a search table, perf 6 ends the stack there.
    pub always: bool,
}

impl Tables {
    /// The tables of all pieces of a file. The pieces are sorted by address. A piece with unusable tables gets none.
    pub fn new<'a>(machine: u32, pieces: impl Iterator<Item = &'a Load<'a>> + Clone) -> Tables {
        let mut out = Tables::default();
        // Some producers write 0 as the machine, for example CPython.
        let known = Arch::ALL.iter().copied().find(|arch| arch.abi().elf_machine == machine);
        let Some(arch) = known.or(NATIVE.filter(|_| machine == 0)) else { return out };
        let target = tables::Target::of(machine, true);
        let Some(base) = pieces.clone().next().map(|load| load.addr) else { return out };
        let (mut frames, mut rows) = (Frames::default(), Vec::new());
        for load in pieces.filter(|load| !load.eh_frame.is_empty()) {
            let Some(at) = load.size.checked_next_multiple_of(8).and_then(|size| load.addr.checked_add(size)) else {
                continue;
            };
            let section = tables::without_omitted(load.eh_frame, target);
            let unwind = Unwind::EhFrame { bytes: &section, addr: at };
            let Ok(Some(encoded)) = encode(arch, &unwind, load.addr, load.size) else { continue };
            let Some(code) = load.addr.checked_sub(base).and_then(|code| u32::try_from(code).ok()) else { continue };
            let to = Target {
                code_size: load.size,
                code: code.into(),
                at: out.eh_frame.len() as u64,
                room: u32::MAX.into(),
            };
            rows.clear();
            let section = encoded.bytes.get(..encoded.eh_frame_size()).unwrap_or_default();
            if frames.append(section, &to, &mut out.eh_frame, &mut rows).is_some() {
                let start = |row: &Row| Row { start: code.saturating_add(row.start), fde: row.fde };
                out.rows.extend(rows.iter().map(start));
            }
        }
        out.rows.sort_by_key(|row| row.start);
        out
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && !self.always
    }

    /// The sizes of `.eh_frame` and `.eh_frame_hdr`, which are 0 without tables.
    pub fn sizes(&self) -> (u64, u64) {
        if self.is_empty() {
            return (0, 0);
        }
        ((self.eh_frame.len() + END) as u64, (HEAD_SIZE + ROW_SIZE * self.rows.len()) as u64)
    }

    /// The bytes of `.eh_frame` and `.eh_frame_hdr` for these offsets. `None` if a distance does not fit in 32 bits.
    pub fn place(mut self, places: &Places) -> Option<(Vec<u8>, Vec<u8>)> {
        let by = i32::try_from(places.text as i64 - places.eh_frame as i64).ok()?;
        for row in &self.rows {
            let field = self.eh_frame.get_mut(row.fde as usize + FDE_ADDR..)?.first_chunk_mut()?;
            *field = i32::from_ne_bytes(*field).checked_add(by)?.to_ne_bytes();
        }
        self.eh_frame.extend_from_slice(&[0; END]);
        let mut hdr = places.head(u32::try_from(self.rows.len()).ok()?).to_vec();
        // The distances to the code are nearly the same as those from `.eh_frame`.
        let last = places.text + self.rows.last().map_or(0, |row| u64::from(row.start));
        i32::try_from(last as i64 - places.hdr as i64).ok()?;
        i32::try_from(places.text as i64 - places.hdr as i64).ok()?;
        self.rows.iter().for_each(|row| hdr.extend_from_slice(&places.row(row)));
        Some((self.eh_frame, hdr))
    }
}
