//! Unwind tables for code that has no free bytes after it, so that builds of perf with libunwind find them.
//!
//! Such a perf reads the tables of an object (`jitted-PID-INDEX.so`) through its mapping, where they would lie after the code. It
//! counts their place from the *lowest* mapping of that object (linux tools/perf/util/unwind-libunwind-local.c,
//! `read_unwind_spec_eh_frame`). So the code gets two LOAD records with one index, and thus one object with two mappings. The
//! first is a *shadow* at an unused address below the code, followed by the tables. The second is the code itself, whose mapping
//! ends with it. That second record is what perf makes the object from, with the same name.
//!
//! Seen from the shadow, the tables have to say where the code really is. Builds of perf with libdw count from the mapping that
//! a sample lies in, so that these need the usual tables. There are both: each FDE twice, and each in the search table, where
//! the reader's own distance to the code picks one.
//!
//! The records of the shadow are the beginning of the group of its code, so that they stay together wherever that is copied.

use std::collections::BinaryHeap;

use super::raw::{u32_at, u64_at};
use super::read::raw;
use super::{id, put_at, put_prefix, LOAD_FIXED_SIZE, UNWINDING_FIXED_SIZE};
use crate::format::put::Put;

/// The name of all shadows. Readers see it where no code ever runs.
pub const NAME: &[u8] = b"[unwind tables]";

/// How large the code of a shadow is: readers skip, or stop at, what has none.
const SIZE: u64 = 1;

/// Bytes of `.eh_frame_hdr` before its search table.
const HDR_TABLE: usize = 12;

/// How long the records of a shadow are that a group begins with; 0 if it has none.
pub fn len(group: &[u8]) -> usize {
    let records = || {
        let unwinding = raw(group, 0).filter(|record| record.id == id::UNWINDING_INFO)?;
        let load_at = unwinding.total_size;
        let load = raw(group, load_at).filter(|record| record.id == id::LOAD)?;
        let name = group.get(load_at + LOAD_FIXED_SIZE..)?.get(..NAME.len())?;
        let behind_name = *group.get(load_at + LOAD_FIXED_SIZE + NAME.len())?;
        let (tables, mapped) = (u64_at(group, 16)?, u64_at(group, 32)?);
        (is_one(u64_at(group, load_at + 40)?, name, tables, mapped) && behind_name == 0)
            .then_some(load_at + load.total_size)
    };
    records().filter(|&len| len <= group.len()).unwrap_or(0)
}

/// Whether a LOAD record is that of a shadow: with tables of this size before it, and what they are mapped to. Code may have any
/// name, but never maps more than its tables.
pub fn is_one(size: u64, name: &[u8], tables_size: u64, mapped_size: u64) -> bool {
    size == SIZE && name == NAME && tables_size > 0 && mapped_size > tables_size
}

/// How many bytes of address space a shadow takes for code of this size with tables of this size.
pub fn room(code_size: u64, tables_len: usize) -> u64 {
    // All tables twice, and what the alignments take.
    8 + align8(code_size) + 2 * tables_len as u64 + 16
}

/// The group for that which begins with `head` and has no shadow, but with one at `addr`; and the size of its tables. `None` if
/// it has no tables, or `addr` is not below the code, or too far away.
pub fn add(head: &[u8], addr: u64) -> Option<(Vec<u8>, usize)> {
    let mut unwinding_at = 0;
    let load_at = loop {
        let record = raw(head, unwinding_at)?;
        match record.id {
            id::UNWINDING_INFO => break unwinding_at + record.total_size,
            id::LOAD => return None,
            _ => unwinding_at += record.total_size,
        }
    };
    let (before, unwinding, load) = (head.get(..unwinding_at)?, head.get(unwinding_at..load_at)?, head.get(load_at..)?);
    let (time, hdr_size) = (u64_at(unwinding, 8)?, usize::try_from(u64_at(unwinding, 24)?).ok()?);
    let (code_addr, code_size) = (u64_at(load, 32)?, u64_at(load, 40)?);
    let distance = i32::try_from(code_addr.checked_sub(addr)?).ok()?;
    let (tables, hdr_size) = twice(unwinding.get(UNWINDING_FIXED_SIZE..)?, hdr_size, distance)?;

    let mut group = Vec::new();
    group.try_reserve_exact(2 * (head.len() + tables.len() + NAME.len())).ok()?;
    put_unwinding(&mut group, time, &tables, hdr_size, align8(code_size) + tables.len() as u64);
    let start = group.len();
    group.extend_from_slice(load.get(..LOAD_FIXED_SIZE)?);
    group.extend_from_slice(NAME);
    group.extend_from_slice(&[0; 1 + SIZE as usize]);
    let record = &mut group[start..];
    let total = u32::try_from(record.len()).ok()?;
    put_at(record, 4, &total.to_ne_bytes());
    put_at(record, 24, &addr.to_ne_bytes());
    put_at(record, 32, &addr.to_ne_bytes());
    put_at(record, 40, &SIZE.to_ne_bytes());

    group.extend_from_slice(before);
    put_unwinding(&mut group, time, &tables, hdr_size, 0);
    group.extend_from_slice(load);
    Some((group, tables.len()))
}

fn put_unwinding(out: &mut Vec<u8>, time: u64, tables: &[u8], hdr_size: usize, mapped_size: u64) {
    let mut record = [0; UNWINDING_FIXED_SIZE];
    let mut put = Put::new(&mut record);
    put_prefix(&mut put, time, id::UNWINDING_INFO, UNWINDING_FIXED_SIZE + tables.len());
    put.u64(tables.len() as u64);
    put.u64(hdr_size as u64);
    put.u64(mapped_size);
    out.extend_from_slice(&record);
    out.extend_from_slice(tables);
}

/// Takes the shadow out of a group that has one, and of its tables what they have for that: it then is as it was before `add`.
/// Of the group there need not be more than the info_records. Returns the size of the tables; `None` if these are not as written here.
pub fn remove(group: &mut Vec<u8>) -> Option<usize> {
    let mut at = len(group);
    let record = loop {
        let record = raw(group, at).filter(|record| at + record.total_size <= group.len())?;
        match record.id {
            id::UNWINDING_INFO => break record,
            id::LOAD => return None,
            _ => at += record.total_size,
        }
    };
    let (size, hdr_size) =
        (usize::try_from(u64_at(group, at + 16)?).ok()?, usize::try_from(u64_at(group, at + 24)?).ok()?);
    let tables = group.get_mut(at..at + record.total_size)?.get_mut(UNWINDING_FIXED_SIZE..)?;
    if tables.len() != size {
        return None;
    }
    let hdr_at = size.checked_sub(hdr_size)?;
    // Of the rows the lower half is for the code where it is mapped; and what these lead to lies first.
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
    // The pointer to the section, and the rows, count from the header.
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

/// Tables in which each FDE comes a second time, for code that lies `distance` bytes higher. Returns the size of their header too.
fn twice(tables: &[u8], hdr_size: usize, distance: i32) -> Option<(Vec<u8>, usize)> {
    let (section, hdr) = tables.split_at_checked(tables.len().checked_sub(hdr_size)?)?;
    let count = u32_at(hdr, 8)? as usize;
    // All counted from the start of the section.
    let hdr_at = i32::try_from(section.len()).ok()?;
    let end = section.len().checked_sub(4)?;
    let mut out = Vec::new();
    out.try_reserve_exact(2 * tables.len()).ok()?;
    out.extend_from_slice(&section[..end]);
    // There are few rows, and sorting a slice of them would add 7 KB to the library.
    let mut rows = BinaryHeap::new();
    rows.try_reserve_exact(2 * count.min(tables.len())).ok()?;
    for row in 0..count {
        let (start, fde) = (i32_at(hdr, HDR_TABLE + 8 * row)?, i32_at(hdr, HDR_TABLE + 8 * row + 4)?);
        let (start, at) = (start.checked_add(hdr_at)?, usize::try_from(hdr_at.checked_add(fde)?).ok()?);
        let len = (u32_at(section, at)? as usize).checked_add(4)?;
        let (copy_at, moved) = (out.len(), i32::try_from(out.len().checked_sub(at)?).ok()?);
        out.extend_from_slice(section.get(at..at.checked_add(len)?)?);
        let copy = &mut out[copy_at..];
        let cie = u32_at(copy, 4)?.checked_add(moved as u32)?;
        let begin = i32_at(copy, 8)?.checked_sub(moved)?.checked_add(distance)?;
        put_at(copy, 4, &cie.to_ne_bytes());
        put_at(copy, 8, &begin.to_ne_bytes());
        rows.push((start, at));
        rows.push((start.checked_add(distance)?, copy_at));
    }
    let rows = rows.into_sorted_vec();
    out.extend_from_slice(&[0; 4]);
    let hdr_at = i32::try_from(out.len()).ok()?;
    out.extend_from_slice(hdr.get(..4)?);
    out.extend_from_slice(&(-hdr_at - 4).to_ne_bytes());
    out.extend_from_slice(&(rows.len() as u32).to_ne_bytes());
    for (start, at) in rows {
        out.extend_from_slice(&start.checked_sub(hdr_at)?.to_ne_bytes());
        out.extend_from_slice(&(i32::try_from(at).ok()? - hdr_at).to_ne_bytes());
    }
    let hdr_size = out.len() - hdr_at as usize;
    Some((out, hdr_size))
}

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    u32_at(bytes, at).map(|word| word as i32)
}

fn align8(size: u64) -> u64 {
    size.wrapping_add(7) & !7
}

#[cfg(test)]
mod tests {
    use gimli::{BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, UnwindContext, UnwindSection};

    use super::*;
    use crate::api::code::{FixedFrame, Lines, Unwind};
    use crate::format::arch::Arch;
    use crate::format::cfi;
    use crate::format::jitdump::{is_group_of, Group, Unwinding};

    /// Both readers find the code's frame by way of the search table: from where the tables lie for the one, and for the other.
    #[test]
    fn tables_hold_from_both_places() {
        const ADDR: u64 = 0x7000_1003;
        let fixed = Unwind::FixedFrame(FixedFrame::new(96, &[]));
        let tables = cfi::encode(Arch::X86_64, &fixed, ADDR, 45).unwrap().unwrap();
        let unwind = Unwinding { tables: &tables, mapped_size: 0 };
        let (name, lines) = (&b"trace"[..], Lines::Rows(&[]));
        let group = Group { pid: 1, tid: 2, index: 3, addr: ADDR, size: 45, name, lines, unwind: Some(unwind) };
        let mut out = [0; 1000];
        let layout = group.write(7, &mut out, 0).unwrap().unwrap();
        let plain = out[..layout.code].to_vec();
        for addr in [ADDR - 64, ADDR - 0x1000, ADDR - 0x6fff_0000] {
            let (whole, tables_len) = add(&plain, addr).unwrap();
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
                for ip in [ADDR, ADDR + 44] {
                    let mut context = UnwindContext::new();
                    let found = hdr.table().unwrap().unwind_info_for_address(
                        &section,
                        &bases,
                        &mut context,
                        ip,
                        EhFrame::cie_from_offset,
                    );
                    assert!(matches!(found.unwrap().cfa(), gimli::CfaRule::RegisterAndOffset { offset: 96, .. }));
                }
            }
            // Taking a shadow out again leaves nothing of it, in the info_records as in all.
            let (mut again, mut info_records) = (whole.clone(), whole[..whole.len() - LOAD_FIXED_SIZE - 6].to_vec());
            assert_eq!(
                (remove(&mut again), remove(&mut info_records)),
                (Some(tables.bytes.len()), Some(tables.bytes.len()))
            );
            assert_eq!((&again[..], &info_records[..]), (&plain[..], &plain[..layout.load]));
        }
        // Not below; and without tables.
        assert!(
            add(&out[..layout.code], ADDR + 8).is_none() && add(&out[layout.load..layout.code], ADDR - 64).is_none()
        );
        assert_eq!(len(&out[..layout.code]), 0);
    }
}
