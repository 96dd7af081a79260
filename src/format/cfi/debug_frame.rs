//! Makes a `.debug_frame` (DWARF 5, 6.4.1) from an `.eh_frame`, for readers that accept an `.eh_frame` only inside a mapped
//! segment.

use super::absolute::{each_entry, end_entry, split_cie, Entry};
use crate::format::put::{word, WORD};
use crate::sys::reserve;

/// The second word of a CIE. The second word of an FDE is the offset of the FDE's CIE instead.
const CIE_ID: [u8; 4] = [0xff; 4];
/// The maximum number of different CIEs that are remembered. The CIE of each FDE is compared with all remembered CIEs, so their
/// number must be small. Compilers use only a few different CIEs.
pub const CIES_MAX: usize = 64;
/// Number of bytes before the instructions of an FDE: length, CIE, address and size.
const FDE_HEAD: usize = 8 + 2 * WORD;

#[derive(Debug, Default)]
pub struct DebugFrame {
    pub bytes: Vec<u8>,
    /// The remembered CIEs: the bytes of the original CIE, and the offset of its converted form in the section.
    cies: Vec<(Vec<u8>, u32)>,
}

impl DebugFrame {
    /// Appends the entries of an `.eh_frame`. `place` is the address and the size of the code. `section` must meet the
    /// requirement of [`each_entry`]. Returns `None` if an entry is invalid, or if there is no memory. Entries that were
    /// appended before the failure stay in the section.
    pub fn append(&mut self, section: &[u8], place: (u64, u64)) -> Option<()> {
        each_entry(section, place, |entry| self.append_entry(entry))
    }

    fn append_entry(&mut self, entry: &Entry<'_>) -> Option<()> {
        let (_, instructions) = entry.program()?;
        let cie = self.cie(entry.cie)?;
        self.bytes.try_reserve(FDE_HEAD + instructions.len() + 8).ok()?;
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&cie.to_ne_bytes());
        self.bytes.extend_from_slice(&word(entry.start));
        self.bytes.extend_from_slice(&word(entry.range));
        self.bytes.extend_from_slice(instructions);
        end_entry(&mut self.bytes, begin)
    }

    /// Returns the offset of a CIE in the section. Appends the CIE if the section does not contain it yet.
    fn cie(&mut self, cie: &[u8]) -> Option<u32> {
        if let Some((_, at)) = self.cies.iter().find(|(known, _)| known == cie) {
            return Some(*at);
        }
        let [head, _, numbers, rest] = split_cie(cie)?;
        let instructions = rest.get(1 + usize::from(*rest.first()?)..)?;
        self.bytes.try_reserve(cie.len() + 8).ok()?;
        let known = reserve::copy_of(cie).ok()?;
        self.cies.try_reserve(1).ok()?;
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&CIE_ID);
        self.bytes.extend_from_slice(head.get(8..)?);
        self.bytes.extend_from_slice(numbers);
        self.bytes.extend_from_slice(instructions);
        end_entry(&mut self.bytes, begin)?;
        let at = u32::try_from(begin).ok()?;
        if self.cies.len() < CIES_MAX {
            self.cies.push((known, at));
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use gimli::{BaseAddresses, CieOrFde, NativeEndian, UnwindContext, UnwindSection};

    use super::*;
    use crate::api::code::Unwind;
    use crate::format::arch::Arch;
    use crate::format::cfi::{absolute, encode};

    /// Readers of `.debug_frame` and of `.eh_frame` find the same rows. The entries of two kinds of frames, each used twice,
    /// share one CIE.
    #[test]
    fn a_reader_finds_the_same() {
        const SIZE: u64 = 100;
        let mut section = DebugFrame::default();
        let kinds = [
            Unwind::FramePointer(crate::api::code::FramePointer::default()),
            Unwind::FixedFrame(crate::api::code::FixedFrame::new(40, &[])),
        ];
        let mut wanted = Vec::new();
        for (number, kind) in kinds.iter().chain(&kinds).enumerate() {
            let tables = encode(Arch::X86_64, kind, 0, SIZE).unwrap().unwrap();
            let addr = 0x7000_0000_0000 + 0x1000 * number as u64;
            let eh_frame = &tables.bytes[..tables.eh_frame_size()];
            section.append(eh_frame, (addr, SIZE)).unwrap();
            for frame in absolute::frames(eh_frame, (addr, SIZE)).unwrap() {
                let mut eh_frame = gimli::EhFrame::new(&frame.bytes, NativeEndian);
                eh_frame.set_address_size(WORD as u8);
                wanted.extend(rows(&eh_frame));
            }
        }
        assert_eq!(section.cies.len(), 1);
        let mut debug_frame = gimli::DebugFrame::new(&section.bytes, NativeEndian);
        debug_frame.set_address_size(WORD as u8);
        assert!(wanted.len() >= 6);
        assert_eq!(rows(&debug_frame), wanted);
    }

    /// Start, end and content of each unwind row.
    fn rows<'a, S: UnwindSection<gimli::EndianSlice<'a, NativeEndian>>>(section: &S) -> Vec<String> {
        let (bases, mut context, mut rows) = (BaseAddresses::default(), UnwindContext::new(), Vec::new());
        let mut entries = section.entries(&bases);
        while let Some(entry) = entries.next().unwrap() {
            let CieOrFde::Fde(fde) = entry else { continue };
            let fde = fde.parse(S::cie_from_offset).unwrap();
            let mut table = fde.rows(section, &bases, &mut context).unwrap();
            while let Some(row) = table.next_row().unwrap() {
                let mut registers: Vec<String> = row.registers().map(|rule| format!("{rule:?}")).collect();
                registers.sort();
                rows.push(format!("{:x} {:x} {:?} {registers:?}", row.start_address(), row.end_address(), row.cfa()));
            }
        }
        rows
    }
}
