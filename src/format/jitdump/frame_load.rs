//! Unwind tables for code without free bytes after it, in a form that builds of perf with libunwind can find.
//!
//! perf with libunwind reads the tables of an object (`jitted-PID-INDEX.so`) in the object's mapping, at the place after the
//! code. perf computes this place from the *lowest* mapping of the object (linux tools/perf/util/unwind-libunwind-local.c,
//! `read_unwind_spec_eh_frame`). So the code gets two LOAD records with the same index, which perf takes for one object with
//! two mappings. The first record is a *frame load* at an unused address below the code, and the tables follow the frame load.
//! The second record is the code itself, and its mapping ends with the code. perf makes the object from the second record.
//!
//! For perf with libunwind, the tables lie after the frame load, so the tables must contain the distance from that place to the
//! code. For perf with libdw, the tables lie after the code, as in objects without a frame load. So the tables contain each FDE
//! twice, once for each place, and the search table has a row for each of the two FDEs. A reader uses the tables at one of the
//! two places, and finds the row that is right for this place.
//!
//! The group of a piece of code (all its records) begins with the records of the frame load. So these records are always copied
//! with the group.

use super::raw::{RawRecord, RawRecords};
use super::record::{id, put_at, raw, unwinding_head, LOAD_FIXED_SIZE, UNWINDING_FIXED_SIZE};
use crate::format::get::{u32_at, u64_at};

/// The name of all frame loads. No code ever runs at the address of a frame load, so no profile shows this name.
pub const NAME: &[u8] = b"[unwind tables]";

/// The code size of a frame load. The size is not 0, because readers skip a LOAD record without code, or stop there.
const SIZE: u64 = 1;

/// Number of bytes of `.eh_frame_hdr` before its search table.
const HDR_TABLE: usize = 12;

/// The size of the frame load's records at the beginning of a group. 0 if the group has no frame load.
pub fn len(group: &[u8]) -> usize {
    let records = || {
        let unwinding = raw(group, 0).filter(|record| record.id == id::UNWINDING_INFO)?;
        let load_at = unwinding.total_size;
        let load = raw(group, load_at).filter(|record| record.id == id::LOAD)?;
        let name = group.get(load_at + LOAD_FIXED_SIZE..)?.get(..NAME.len())?;
        let after_name = *group.get(load_at + LOAD_FIXED_SIZE + NAME.len())?;
        let (tables, mapped) = (u64_at(group, 16)?, u64_at(group, 32)?);
        (is_one(u64_at(group, load_at + 40)?, name, tables, mapped) && after_name == 0)
            .then_some(load_at + load.total_size)
    };
    records().filter(|&len| len <= group.len()).unwrap_or(0)
}

/// Whether a LOAD record belongs to a frame load. `tables_size` and `mapped_size` are from the UNWINDING_INFO record before the
/// LOAD record. Other code may have the same name, but in the UNWINDING_INFO record of other code, `mapped_size` is never
/// larger than `tables_size`.
pub fn is_one(size: u64, name: &[u8], tables_size: u64, mapped_size: u64) -> bool {
    size == SIZE && name == NAME && tables_size > 0 && mapped_size > tables_size
}

/// How many bytes of address space a frame load needs, for code of `code_size` bytes with tables of `tables_len` bytes.
pub fn room(code_size: u64, tables_len: usize) -> u64 {
    // The tables of a frame load contain each FDE twice. The numbers 8 and 16 leave room for alignment.
    8 + align8(code_size) + 2 * tables_len as u64 + 16
}

/// Appends a frame load at `addr`, and then the group `head`, which lacks its code bytes. Returns the size of the new tables.
/// Returns `None` and appends nothing if the group has no tables. Does the same if the distance from `addr` up to the code is
/// smaller than the code, or does not fit in 31 bits.
pub fn add(head: &[u8], addr: u64, out: &mut Vec<u8>) -> Option<usize> {
    let begin = out.len();
    let added = add_at(begin, head, addr, out);
    if added.is_none() {
        out.truncate(begin);
    }
    added
}

fn add_at(begin: usize, head: &[u8], addr: u64, out: &mut Vec<u8>) -> Option<usize> {
    let record = unwinding_of(head, 0)?;
    let unwinding = record.unwinding_info()?;
    let (before, load) = (head.get(..record.offset)?, head.get(record.offset + record.size()..)?);
    let (time, hdr_size) = (record.timestamp, usize::try_from(unwinding.hdr_size).ok()?);
    let (code_addr, code_size) = (u64_at(load, 32)?, u64_at(load, 40)?);
    let distance = code_addr.checked_sub(addr).filter(|&distance| distance >= code_size)?;
    let tables = unwinding.tail;

    let fixed = 2 * (UNWINDING_FIXED_SIZE + LOAD_FIXED_SIZE + NAME.len());
    out.try_reserve(fixed + 4 * tables.len() + before.len() + load.len()).ok()?;
    let tables_at = begin + UNWINDING_FIXED_SIZE;
    out.resize(tables_at, 0);
    let hdr_size = put_twice(tables, hdr_size, i32::try_from(distance).ok()?, out)?;
    let start = out.len();
    let len = start - tables_at;
    put_at(out, begin, &unwinding_head(time, len, hdr_size, align8(code_size) + len as u64));
    out.extend_from_slice(load.get(..LOAD_FIXED_SIZE)?);
    out.extend_from_slice(NAME);
    out.extend_from_slice(&[0; 1 + SIZE as usize]);
    let record = &mut out[start..];
    let total = u32::try_from(record.len()).ok()?;
    put_at(record, 4, &total.to_ne_bytes());
    put_at(record, 24, &addr.to_ne_bytes());
    put_at(record, 32, &addr.to_ne_bytes());
    put_at(record, 40, &SIZE.to_ne_bytes());

    out.extend_from_slice(before);
    out.extend_from_slice(&unwinding_head(time, len, hdr_size, 0));
    out.extend_from_within(tables_at..start);
    out.extend_from_slice(load);
    Some(len)
}

/// The UNWINDING_INFO record between offset `at` of the group and the next LOAD record.
fn unwinding_of(group: &[u8], at: usize) -> Option<RawRecord<'_>> {
    RawRecords::from(group, at)
        .take_while(|record| record.id != id::LOAD)
        .find(|record| record.id == id::UNWINDING_INFO)
}

/// Undoes `add`: removes the frame load from a group, and removes the FDEs that `add` has added to the tables. The LOAD record
/// of the code may be missing. Returns the new size of the tables; `None` if `add` has not written the tables.
pub fn remove(group: &mut Vec<u8>) -> Option<usize> {
    let record = unwinding_of(group, len(group))?;
    let unwinding = record.unwinding_info()?;
    let (size, hdr_size) = (usize::try_from(unwinding.size).ok()?, usize::try_from(unwinding.hdr_size).ok()?);
    let (at, end) = (record.offset, record.offset + record.size());
    let tables = group.get_mut(at + UNWINDING_FIXED_SIZE..end)?;
    if tables.len() != size {
        return None;
    }
    let hdr_at = size.checked_sub(hdr_size)?;
    // The first half of the rows is for tables that lie after the code. The FDEs of the second half follow the FDEs of the
    // first half.
    let rows = u32_at(tables.get(hdr_at..)?, 8)? as usize;
    let mut end = hdr_at.checked_sub(4)?;
    for row in rows / 2..rows {
        let fde = i32_at(tables, hdr_at + HDR_TABLE + 8 * row + 4)?;
        end = end.min(usize::try_from(i64::try_from(hdr_at).ok()? + i64::from(fde)).ok()?);
    }
    let new_hdr_at = end + 4;
    let moved = i32::try_from(hdr_at.checked_sub(new_hdr_at)?).ok()?;
    let new_hdr_size = HDR_TABLE + 8 * (rows / 2);
    tables.copy_within(hdr_at..hdr_at.checked_add(new_hdr_size).filter(|&end| end <= size)?, new_hdr_at);
    put_at(tables, end, &[0; 4]);
    let hdr = &mut tables[new_hdr_at..];
    put_at(hdr, 8, &((rows / 2) as u32).to_ne_bytes());
    // The pointer to `.eh_frame` and the rows are relative to `.eh_frame_hdr`, which has moved.
    let words = [4].into_iter().chain((0..rows / 2 * 2).map(|word| HDR_TABLE + 4 * word));
    for word in words {
        let value = i32_at(hdr, word)?.checked_add(moved)?;
        put_at(hdr, word, &value.to_ne_bytes());
    }
    let new_size = new_hdr_at + new_hdr_size;
    let record_size = u32::try_from(UNWINDING_FIXED_SIZE + new_size).ok()?;
    put_at(group, at + 4, &record_size.to_ne_bytes());
    put_at(group, at + 16, &(new_size as u64).to_ne_bytes());
    put_at(group, at + 24, &(new_hdr_size as u64).to_ne_bytes());
    group.drain(at + UNWINDING_FIXED_SIZE + new_size..at + UNWINDING_FIXED_SIZE + size);
    group.drain(..len(group));
    Some(new_size)
}

/// Appends a copy of `tables` that contains each FDE twice. The second FDE is for code that is `distance` bytes higher.
/// `distance` is at least the size of the code. Returns the size of the new `.eh_frame_hdr`.
fn put_twice(tables: &[u8], hdr_size: usize, distance: i32, to: &mut Vec<u8>) -> Option<usize> {
    let (section, hdr) = tables.split_at_checked(tables.len().checked_sub(hdr_size)?)?;
    let count = u32_at(hdr, 8)? as usize;
    // All offsets count from the start of the section.
    let hdr_at = i32::try_from(section.len()).ok()?;
    let row = |number: usize| {
        let at = HDR_TABLE + 8 * number;
        Some((i32_at(hdr, at)?.checked_add(hdr_at)?, usize::try_from(hdr_at.checked_add(i32_at(hdr, at + 4)?)?).ok()?))
    };
    let begin = to.len();
    to.extend_from_slice(&section[..section.len().checked_sub(4)?]);
    for number in 0..count {
        let (_, at) = row(number)?;
        let len = (u32_at(section, at)? as usize).checked_add(4)?;
        let (copy_at, moved) = (to.len(), i32::try_from((to.len() - begin).checked_sub(at)?).ok()?);
        to.extend_from_slice(section.get(at..at.checked_add(len)?)?);
        let copy = &mut to[copy_at..];
        let cie = u32_at(copy, 4)?.checked_add(moved as u32)?;
        let first = i32_at(copy, 8)?.checked_sub(moved)?.checked_add(distance)?;
        put_at(copy, 4, &cie.to_ne_bytes());
        put_at(copy, 8, &first.to_ne_bytes());
    }
    to.extend_from_slice(&[0; 4]);
    let new_hdr_at = i32::try_from(to.len() - begin).ok()?;
    to.extend_from_slice(hdr.get(..4)?);
    to.extend_from_slice(&(-new_hdr_at - 4).to_ne_bytes());
    to.extend_from_slice(&(2 * count as u32).to_ne_bytes());
    // The rows stay sorted: the copies are for higher addresses, in the same order.
    let mut copy_at = hdr_at - 4;
    for number in 0..2 * count {
        let (mut start, at) = row(number % count)?;
        let mut fde = i32::try_from(at).ok()?;
        if number >= count {
            (start, fde) = (start.checked_add(distance)?, copy_at);
            copy_at += i32::try_from(u32_at(section, at)?).ok()?.checked_add(4)?;
        }
        to.extend_from_slice(&start.checked_sub(new_hdr_at)?.to_ne_bytes());
        to.extend_from_slice(&(fde - new_hdr_at).to_ne_bytes());
    }
    Some(to.len() - begin - new_hdr_at as usize)
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(|word| word as i32)
}

fn align8(size: u64) -> u64 {
    size.wrapping_add(7) & !7
}

#[cfg(test)]
mod tests {
    use gimli::constants::{DW_EH_PE_pcrel, DW_EH_PE_sdata4};
    use gimli::write::{
        self, Address, CallFrameInstruction, CommonInformationEntry, EndianVec, FrameDescriptionEntry, FrameTable,
    };
    use gimli::{
        BaseAddresses, EhFrame, EhFrameHdr, Encoding, Format, LittleEndian, Register, UnwindContext, UnwindSection,
    };

    use super::*;
    use crate::api::code::{FixedFrame, Lines, Unwind};
    use crate::format::arch::Arch;
    use crate::format::cfi;
    use crate::format::jitdump::{is_group_of, Group, Unwinding};

    const ADDR: u64 = 0x7000_1003;

    /// Readers find all frames in the search table, whether the tables lie after the frame load or after the code.
    #[test]
    fn tables_hold_from_both_places() {
        hold(&Unwind::FixedFrame(FixedFrame::new(96, &[])), &[(0, 96), (44, 96)]);
    }

    /// Readers also find all frames if the tables have three entries, and the entries are not sorted by the address of their
    /// code.
    #[test]
    fn tables_of_several_entries_hold_too() {
        const SECTION: u64 = ADDR + 0x1000;
        let mut table = FrameTable::default();
        let encoding = Encoding { format: Format::Dwarf32, version: 1, address_size: 8 };
        let mut cie = CommonInformationEntry::new(encoding, 1, -8, Register(16));
        cie.fde_address_encoding = DW_EH_PE_pcrel | DW_EH_PE_sdata4;
        let cie = table.add_cie(cie);
        for (start, cfa) in [(30, 48), (0, 16), (15, 32)] {
            // gimli writes pc-relative pointers as if the section were at address 0.
            let mut fde = FrameDescriptionEntry::new(Address::Constant((ADDR + start).wrapping_sub(SECTION)), 15);
            fde.add_instruction(0, CallFrameInstruction::Cfa(Register(7), cfa));
            table.add_fde(cie, fde);
        }
        let mut section = write::EhFrame::from(EndianVec::new(LittleEndian));
        table.write_eh_frame(&mut section).unwrap();
        let bytes = section.0.into_vec();
        let frames = [(0, 16), (14, 16), (15, 32), (29, 32), (30, 48), (44, 48)];
        hold(&Unwind::EhFrame { bytes: &bytes, addr: SECTION }, &frames);
    }

    /// Each pair in `frames` is an offset in the code, and the offset that the rule for the CFA must have there.
    fn hold(unwind: &Unwind<'_>, frames: &[(u64, i64)]) {
        let tables = cfi::encode(Arch::X86_64, unwind, ADDR, 45).unwrap().unwrap();
        let unwind = Unwinding { tables: &tables, mapped_size: 0 };
        let (name, lines) = (&b"trace"[..], Lines::Rows(&[]));
        let group = Group { pid: 1, tid: 2, index: 3, addr: ADDR, size: 45, name, lines, unwind: Some(unwind) };
        let mut out = [0; 1000];
        let layout = group.write(7, &mut out, 0).unwrap().unwrap();
        let plain = out[..layout.code].to_vec();
        for addr in [ADDR - 64, ADDR - 0x1000, ADDR - 0x6fff_0000] {
            let mut out = b"before".to_vec();
            let tables_len = add(&plain, addr, &mut out).unwrap();
            let whole = out.split_off(6);
            assert_eq!(out, b"before");
            let at = len(&whole);
            assert!(at > 0 && tables_len < 2 * tables.bytes.len());
            assert!(room(45, tables.bytes.len()) >= 48 + tables_len as u64);
            assert!(is_group_of(&whole, 45, 3, b"trace"));
            let head = &whole[at..];
            let both = &head[UNWINDING_FIXED_SIZE..][..tables_len];
            assert_eq!(both, &whole[UNWINDING_FIXED_SIZE..][..tables_len]);
            for base in [addr, ADDR] {
                let section_at = base + align8(45);
                let hdr_size = u64_at(head, 24).unwrap() as usize;
                let hdr_at = both.len() - hdr_size;
                let bases =
                    BaseAddresses::default().set_eh_frame(section_at).set_eh_frame_hdr(section_at + hdr_at as u64);
                let hdr = EhFrameHdr::new(&both[hdr_at..], LittleEndian).parse(&bases, 8).unwrap();
                let section = EhFrame::new(&both[..hdr_at], LittleEndian);
                for &(at, cfa) in frames {
                    let mut context = UnwindContext::new();
                    let found = hdr.table().unwrap().unwind_info_for_address(
                        &section,
                        &bases,
                        &mut context,
                        ADDR + at,
                        EhFrame::cie_from_offset,
                    );
                    assert!(
                        matches!(found.unwrap().cfa(), gimli::CfaRule::RegisterAndOffset { offset, .. } if *offset == cfa)
                    );
                }
            }
            // Removing a frame load restores the group, whether or not the group has the LOAD record of the code.
            let (mut again, mut info_records) = (whole.clone(), whole[..whole.len() - LOAD_FIXED_SIZE - 6].to_vec());
            assert_eq!(
                (remove(&mut again), remove(&mut info_records)),
                (Some(tables.bytes.len()), Some(tables.bytes.len()))
            );
            assert_eq!((&again[..], &info_records[..]), (&plain[..], &plain[..layout.load]));
        }
        // `add` refuses an address that is not below the code, and a group without tables.
        let mut none = b"before".to_vec();
        for (head, addr) in [(&out[..layout.code], ADDR + 8), (&out[layout.load..layout.code], ADDR - 64)] {
            assert!(add(head, addr, &mut none).is_none() && none == b"before");
        }
        assert_eq!(len(&out[..layout.code]), 0);
    }
}
