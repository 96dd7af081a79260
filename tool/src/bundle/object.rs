//! Copies an object of compiled code into a bundle.
//!
//! The unwind tables of an object may lie hundreds of megabytes behind the code. Readers of a bundle need no tables, because the
//! bundle has call chains. So the copy of a long object has no tables, and the other data behind the code are moved together.

use std::fs::File;
use std::io::Read;

use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64, PT_GNU_EH_FRAME, PT_LOAD, PT_NULL};
use object::elf::{SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_NOTE, SHT_NULL};
use object::read::elf::FileHeader;
use object::{pod, Endianness, U64};

use crate::open;
use crate::region::Region;

/// A file of at most this size is copied unchanged.
const UNCHANGED_MOST: u64 = 256 << 20;
/// The maximum size of a copy without tables.
const MOST: u64 = 64 << 20;
/// The maximum number of program headers or section headers.
const HEADERS_MOST: u16 = 64;

/// The contents of an object, or its code, symbols and lines if the object is long. `None` if even these are too large, or if
/// the file is damaged.
pub fn contents(file: &File) -> Option<Vec<u8>> {
    let len = file.metadata().ok()?.len();
    if len > UNCHANGED_MOST {
        return without_tables(file).filter(|bytes| Region::read(bytes).is_ok());
    }
    let mut bytes = Vec::new();
    file.take(len + 1).read_to_end(&mut bytes).ok()?;
    (len == bytes.len() as u64).then_some(bytes)
}

fn without_tables(file: &File) -> Option<Vec<u8>> {
    let head = part(file, 0, size_of::<FileHeader64<Endianness>>() as u64, MOST)?;
    let header = FileHeader64::<Endianness>::parse(&*head).ok()?;
    let endian = header.endian().ok()?;
    let mut segments: Vec<ProgramHeader64<_>> = headers(file, header.e_phoff(endian), header.e_phnum(endian))?;
    let mut sections: Vec<SectionHeader64<_>> = headers(file, header.e_shoff(endian), header.e_shnum(endian))?;
    let segment_ends = segments
        .iter()
        .filter(|segment| segment.p_type.get(endian) == PT_LOAD)
        .map(|segment| segment.p_offset.get(endian).checked_add(segment.p_filesz.get(endian)));
    // The last page of code may lie behind the segment.
    let section_ends = sections
        .iter()
        .filter(|section| section.sh_flags.get(endian).contains(SHF_EXECINSTR))
        .filter(|section| section.sh_addr.get(endian) == section.sh_offset.get(endian))
        .map(|section| section.sh_offset.get(endian).checked_add(section.sh_size.get(endian)));
    let loaded = segment_ends.chain(section_ends).collect::<Option<Vec<u64>>>()?.into_iter().max()?;
    let mut out = part(file, 0, loaded, MOST)?;

    for segment in segments.iter_mut().filter(|segment| segment.p_type.get(endian) == PT_GNU_EH_FRAME) {
        segment.p_type.set(endian, PT_NULL);
    }
    replace(&mut out, header.e_phoff(endian), pod::bytes_of_slice(&segments))?;
    for section in &mut sections {
        let (at, size, kind) =
            (section.sh_offset.get(endian), section.sh_size.get(endian), section.sh_type.get(endian));
        if matches!(kind, SHT_NULL | SHT_NOBITS) || at.checked_add(size)? <= loaded {
            continue;
        }
        let flags = section.sh_flags.get(endian);
        if flags.contains(SHF_ALLOC) && !flags.contains(SHF_EXECINSTR) && kind != SHT_NOTE {
            section.sh_type.set(endian, SHT_NOBITS);
            continue;
        }
        align(&mut out, section.sh_addralign.get(endian));
        let bytes = part(file, at, size, MOST.checked_sub(out.len() as u64)?)?;
        section.sh_offset.set(endian, out.len() as u64);
        out.extend_from_slice(&bytes);
    }
    align(&mut out, align_of::<u64>() as u64);
    let place = U64::new(endian, out.len() as u64);
    out.extend_from_slice(pod::bytes_of_slice(&sections));
    replace(&mut out, std::mem::offset_of!(FileHeader64<Endianness>, e_shoff) as u64, pod::bytes_of(&place))?;
    Some(out)
}

/// Reads a part of the file that has at most `most` bytes.
fn part(file: &File, at: u64, size: u64, most: u64) -> Option<Vec<u8>> {
    (size <= most).then(|| open::read_at(file, at, size).ok())?
}

fn headers<T: pod::Pod>(file: &File, at: u64, count: u16) -> Option<Vec<T>> {
    let count = (1..=HEADERS_MOST).contains(&count).then_some(count)?;
    let bytes = part(file, at, u64::from(count) * size_of::<T>() as u64, MOST)?;
    Some(pod::slice_from_bytes(&bytes, count.into()).ok()?.0.to_vec())
}

fn align(out: &mut Vec<u8>, align: u64) {
    out.resize(out.len().next_multiple_of(align.clamp(1, 64) as usize), 0);
}

fn replace(out: &mut [u8], at: u64, bytes: &[u8]) -> Option<()> {
    let at = usize::try_from(at).ok()?;
    out.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use object::{Object, ObjectSection, SectionKind};

    use super::*;

    const FAR: u64 = 300 << 20;

    /// A file with `.text`, tables far away, and a section without an address behind the tables.
    fn far_tables() -> File {
        let path = std::env::temp_dir().join(format!("jitsym-object-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        // Type DYN, x86-64; no entry; program headers at 64, section headers at FAR + 64.
        let head = [words(&[0x1_0102_464c_457f, 0, 0x1_003e_0003, 0, 64, FAR + 64]), vec![0; 4]].concat();
        let sizes: Vec<u8> = [64u16, 56, 2, 64, 4, 3].iter().flat_map(|size| size.to_le_bytes()).collect();
        let load = words(&[5 << 32 | 1, 0, 0, 0, 0x100, 0x100, 4096]);
        let tables = words(&[4 << 32 | 0x6474_e550, FAR, FAR, FAR, 8, 8, 4]);
        file.write_all_at(&[head, sizes, load, tables].concat(), 0).unwrap();
        file.write_all_at(&[0xc3; 16], 0xf0).unwrap();
        file.write_all_at(b"tables..", FAR).unwrap();
        file.write_all_at(b"\0.text\0.eh_frame_hdr\0.shstrtab\0", FAR + 8).unwrap();
        let section = |name: u64, kind: u64, flags, at, size| words(&[kind << 32 | name, flags, at, at, size, 0, 1, 0]);
        let all = [
            section(0, 0, 0, 0, 0),
            section(1, 1, 6, 0xf0, 16),
            section(7, 1, 2, FAR, 8),
            section(21, 3, 0, FAR + 8, 31),
        ];
        file.write_all_at(&all.concat(), FAR + 64).unwrap();
        file
    }

    #[test]
    fn the_hole_and_the_tables_are_gone() {
        let file = far_tables();
        let bytes = without_tables(&file).unwrap();
        assert!(bytes.len() < 1000, "{}", bytes.len());
        let copy = object::File::parse(&*bytes).unwrap();
        let text = copy.section_by_name(".text").unwrap();
        assert_eq!((text.address(), text.data().unwrap()), (0xf0, &[0xc3; 16][..]));
        let tables = copy.section_by_name(".eh_frame_hdr").unwrap();
        assert_eq!((tables.address(), tables.kind()), (FAR, SectionKind::UninitializedData));
        assert!(contents(&file).is_some());
        // A section that is larger than a copy may be.
        file.write_all_at(&(1u64 << 40).to_le_bytes(), FAR + 64 + 3 * 64 + 32).unwrap();
        assert!(contents(&file).is_none());
        assert!(contents(&File::open("/dev/null").unwrap()).is_some_and(|bytes| bytes.is_empty()));
    }
}
