//! Copies an object of compiled code into a bundle, without unwind tables.
//!
//! Readers of a bundle need no unwind tables, because the bundle has call chains. In the object, the tables may lie hundreds of
//! megabytes behind the code. All data behind the code is therefore moved together.

use std::fs::File;

use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64, PT_GNU_EH_FRAME, PT_LOAD, PT_NULL};
use object::elf::{SHF_ALLOC, SHT_NOBITS, SHT_NULL};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{pod, Endianness, ReadCache, ReadRef, U64};

/// The maximum size of an object in a bundle.
const MOST: u64 = 256 << 20;

/// The code, symbols and lines of an ELF file. `None` if the file is no ELF file of 64 bits, or too large.
pub fn without_tables(file: &File) -> Option<Vec<u8>> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?;
    let end_of = |segment: &ProgramHeader64<_>| segment.p_offset(endian).checked_add(segment.p_filesz(endian));
    let loaded = segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD).map(end_of);
    let loaded = loaded.collect::<Option<Vec<u64>>>()?.into_iter().max().filter(|&end| end <= MOST)?;
    let mut out = cache.read_bytes_at(0, loaded).ok()?.to_vec();

    let mut segments = segments.to_vec();
    for segment in segments.iter_mut().filter(|segment| segment.p_type(endian) == PT_GNU_EH_FRAME) {
        segment.p_type.set(endian, PT_NULL);
    }
    replace(&mut out, header.e_phoff(endian), pod::bytes_of_slice(&segments))?;

    let mut sections = header.section_headers(endian, &cache).ok()?.to_vec();
    for section in &mut sections {
        let (at, size) = (section.sh_offset.get(endian), section.sh_size.get(endian));
        let has_bytes = !matches!(section.sh_type.get(endian), SHT_NULL | SHT_NOBITS);
        if !has_bytes || at.checked_add(size)? <= loaded {
            continue;
        }
        if section.sh_flags.get(endian).contains(SHF_ALLOC) {
            section.sh_type.set(endian, SHT_NOBITS);
            section.sh_offset.set(endian, loaded);
        } else {
            align(&mut out, section.sh_addralign.get(endian));
            section.sh_offset.set(endian, out.len() as u64);
            append(&mut out, cache.read_bytes_at(at, size).ok()?)?;
        }
    }
    align(&mut out, align_of::<u64>() as u64);
    let place = U64::new(endian, out.len() as u64);
    append(&mut out, pod::bytes_of_slice::<SectionHeader64<Endianness>>(&sections))?;
    replace(&mut out, std::mem::offset_of!(FileHeader64<Endianness>, e_shoff) as u64, pod::bytes_of(&place))?;
    Some(out)
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend_from_slice(bytes);
    (out.len() as u64 <= MOST).then_some(())
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

    use object::{Object, ObjectSection, ObjectSymbol};

    use super::*;
    use crate::bundle::chains::Symbols;
    use crate::bundle::names::Names;
    use crate::bundle::symbols::elf;

    /// Code, symbols and names of sections are there, and the distance of the tables is not.
    #[test]
    fn the_hole_is_gone() {
        const FAR: u64 = 300 << 20;
        // A file of symbols. A segment and the section after the symbols become those of tables.
        let mut names = Names::default();
        let symbols = Symbols::from([(0x40, (0x50, names.id("function")))]);
        let bytes = elf(&symbols, &names, Some(&[7; 20]));
        let path = std::env::temp_dir().join(format!("jitsym-object-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let before = object::File::parse(&*bytes).unwrap();
        let all: Vec<_> = before.sections().map(|section| section.name().unwrap().to_owned()).collect();
        // The section headers move far away, as behind tables.
        let header = FileHeader64::<Endianness>::parse(&*bytes).unwrap();
        let (endian, at) = (header.endian().unwrap(), header.e_shoff(header.endian().unwrap()));
        file.write_all_at(&bytes[at as usize..], FAR).unwrap();
        file.write_all_at(pod::bytes_of(&U64::new(endian, FAR)), 40).unwrap();
        let copy = without_tables(&file).unwrap();
        assert!(copy.len() < bytes.len() + 1000, "{}", copy.len());
        let after = object::File::parse(&*copy).unwrap();
        assert_eq!(after.sections().map(|section| section.name().unwrap().to_owned()).collect::<Vec<_>>(), all);
        let symbol = after.symbols().find(|symbol| symbol.name() == Ok("function")).unwrap();
        assert_eq!((symbol.address(), symbol.size()), (0x40, 0x10));
        assert_eq!(after.build_id().unwrap(), Some(&[7; 20][..]));
        assert!(without_tables(&File::open("/proc/self/exe").unwrap()).is_some());
        assert!(without_tables(&File::open("/dev/null").unwrap()).is_none());
    }
}
