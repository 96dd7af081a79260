//! Makes files with the symbols in samples: for programs and libraries, and for the kernel.

use std::collections::BTreeMap;
use std::fmt::Write;

use jitsym::format::elf::header::{
    elf_header, program_header, ELF_HEADER, ET_DYN, NT_GNU_BUILD_ID, PF_R, PF_X, PROGRAM_HEADER, PT_LOAD, PT_NOTE,
    SHF_ALLOC, SHF_EXECINSTR, SHT_NOBITS, SHT_NOTE, SHT_STRTAB, SHT_SYMTAB,
};
use jitsym::format::elf::{symbol, SYMBOL_SIZE};

use super::chains::Symbols;
use super::names::Names;
use crate::objects::Sections;

const SEGMENTS: u16 = 2;
const NOTE_AT: u64 = ELF_HEADER as u64 + SEGMENTS as u64 * PROGRAM_HEADER as u64;

/// An ELF file with these symbols, without code. Addresses are file offsets, as in the recording. perf accepts the file as
/// the original because of its build-id.
pub fn elf(symbols: &Symbols, names: &Names, build_id: Option<&[u8]>) -> Vec<u8> {
    let (mut symtab, mut strtab) = (vec![0; SYMBOL_SIZE], vec![0]);
    for (&start, &(end, name)) in symbols {
        let Ok(name_at) = u32::try_from(strtab.len()) else { break };
        symtab.extend(symbol(name_at, start, end.saturating_sub(start)));
        strtab.extend(names.name(name).bytes().filter(|&byte| byte != 0).chain([0]));
    }
    let start = symbols.keys().next().copied().unwrap_or(0);
    let end = symbols.values().map(|(end, _)| *end).max().unwrap_or(0);
    let mut note = Vec::new();
    if let Some(id) = build_id {
        for word in [4, id.len() as u32, NT_GNU_BUILD_ID] {
            note.extend(word.to_ne_bytes());
        }
        note.extend(b"GNU\0");
        note.extend(id);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    let note_end = NOTE_AT + note.len() as u64;
    let mut sections = Sections::default();
    sections.add(".text", SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, &(start..end.max(start)), 1);
    if !note.is_empty() {
        sections.add(".note.gnu.build-id", SHT_NOTE, SHF_ALLOC, &(NOTE_AT..note_end), 4);
    }
    let symtab_at = note_end.next_multiple_of(8);
    let strtab_at = symtab_at + symtab.len() as u64;
    let sections_at = (strtab_at + strtab.len() as u64).next_multiple_of(8);
    sections.add(".symtab", SHT_SYMTAB, 0, &(symtab_at..strtab_at), 8);
    sections.add(".strtab", SHT_STRTAB, 0, &(strtab_at..strtab_at + strtab.len() as u64), 1);
    let (count, headers_at, rest) = sections.finish(sections_at);

    let mut file = elf_header(ET_DYN, SEGMENTS, count, headers_at).to_vec();
    // perf subtracts the address of the segment from the address of a symbol, and adds the segment's offset in the file.
    file.extend(program_header(PT_LOAD, PF_R | PF_X, [0, 0, 0, note_end, end.max(note_end), 1]));
    file.extend(program_header(PT_NOTE, PF_R, [NOTE_AT, NOTE_AT, NOTE_AT, note.len() as u64, note.len() as u64, 4]));
    for (at, part) in [(NOTE_AT, note), (symtab_at, symtab), (strtab_at, strtab), (sections_at, rest)] {
        file.resize(at as usize, 0);
        file.extend(part);
    }
    file
}

/// A list of the kernel's symbols in the form of `/proc/kallsyms`. `known` has symbols that perf needs to find the kernel.
pub fn kallsyms(symbols: &BTreeMap<u64, (u32, u32)>, known: &BTreeMap<u64, String>, names: &Names) -> String {
    let mut text = String::new();
    let is_one_word = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    for (address, name) in known.iter().filter(|(_, name)| is_one_word(name)) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{address:016x} T {name}");
    }
    for (address, &(name, module)) in symbols {
        let (name, module) = (names.name(name), names.name(module));
        let module = match module.strip_prefix('[') {
            None => continue,
            Some(_) if module.starts_with("[kernel") => String::new(),
            Some(_) => format!("\t{module}"),
        };
        if is_one_word(name) && !known.values().any(|known| known == name) {
            let _ = writeln!(text, "{address:016x} t {name}{module}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Region;
    use object::Object;

    #[test]
    fn readers_find_the_symbols() {
        let mut names = Names::default();
        let (first, second) = (names.id("first"), names.id("a b"));
        let symbols = Symbols::from([(0x1130, (0x1140, first)), (0x7f00_0000_2000, (0x7f00_0000_2001, second))]);
        for id in [None, Some(&[1, 2, 3, 4, 5][..])] {
            let bytes = elf(&symbols, &names, id);
            let region = Region::read(&bytes).unwrap();
            let found: Vec<_> = region.functions.iter().map(|one| (one.addr, one.size, one.name)).collect();
            assert_eq!(found, [(0x1130, 16, &b"first"[..]), (0x7f00_0000_2000, 1, b"a b")]);
            assert_eq!(object::File::parse(&*bytes).unwrap().build_id().unwrap(), id);
        }
        assert!(Region::read(&elf(&Symbols::new(), &names, None)).unwrap().functions.is_empty());
    }

    #[test]
    fn symbols_of_the_kernel() {
        let mut names = Names::default();
        let mut id = |name| names.id(name);
        let symbols = BTreeMap::from([
            (0x10, (id("_text"), id("[kernel.kallsyms]"))),
            (0x20, (id("f"), id("[kernel.kallsyms]"))),
            (0x30, (id("g"), id("[ext4]"))),
            (0x40, (id("two words"), id("[ext4]"))),
            (0x50, (id("bpf_prog"), id("bpf_prog"))),
        ]);
        let text = kallsyms(&symbols, &BTreeMap::from([(0x10, "_text".to_owned())]), &names);
        assert_eq!(text, "0000000000000010 T _text\n0000000000000020 t f\n0000000000000030 t g\t[ext4]\n");
    }
}
