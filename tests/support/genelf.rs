//! ELF files laid out as those that `perf inject --jit` makes of each function (linux tools/perf/util/genelf.c), for any machine.
#![allow(dead_code)]

/// Where perf puts the code, in the file and in its addresses (genelf.h, `GEN_ELF_TEXT_OFFSET`).
pub const TEXT: u64 = 0x80;

/// The form of a machine's files.
struct Form {
    is_64_bit: bool,
    is_big_endian: bool,
}

impl Form {
    fn number(&self, value: u64, size: usize) -> Vec<u8> {
        let bytes = &value.to_le_bytes()[..size];
        if self.is_big_endian {
            bytes.iter().rev().copied().collect()
        } else {
            bytes.to_vec()
        }
    }

    fn word_size(&self) -> usize {
        if self.is_64_bit {
            8
        } else {
            4
        }
    }

    /// Each pair contains a value and its number of bytes; 0 stands for the size of an address.
    fn put(&self, file: &mut Vec<u8>, fields: &[(u64, usize)]) {
        for &(value, size) in fields {
            file.extend(self.number(value, if size == 0 { self.word_size() } else { size }));
        }
    }
}

/// A file with `.text`, `.eh_frame`, `.eh_frame_hdr` and a symbol, and beyond what perf writes the program header that
/// `llvm-readobj` finds `.eh_frame_hdr` by. `machine` is that of the header of the jitdump, and decides the size of addresses and
/// the byte order.
pub fn object(machine: u16, code: &[u8], eh_frame: &[u8], hdr: &[u8], symbol: &str) -> Vec<u8> {
    let form = Form { is_64_bit: !matches!(machine, 3 | 40), is_big_endian: machine == 22 };
    let flags = match machine {
        // Calls with floating-point registers, and compressed instructions.
        243 => 5,
        // The version of the ABI, and calls with floating-point registers.
        40 => 0x0500_0400,
        // The version of the ABI.
        21 => 2,
        _ => 0,
    };
    let code_size = code.len() as u64;
    let eh_frame_at = TEXT + code_size.next_multiple_of(8);
    let hdr_at = eh_frame_at + eh_frame.len() as u64;
    let hdr_size = hdr.len() as u64;
    let names = b"\0.text\0.eh_frame\0.eh_frame_hdr\0.shstrtab\0.symtab\0.strtab\0";

    let mut file = vec![0; TEXT as usize];
    file.extend_from_slice(code);
    file.resize(eh_frame_at as usize, 0);
    file.extend_from_slice(eh_frame);
    file.extend_from_slice(hdr);
    let names_at = file.len() as u64;
    file.extend_from_slice(names);
    let strings_at = file.len() as u64;
    let strings = [&b"\0"[..], symbol.as_bytes(), b"\0"].concat();
    file.extend_from_slice(&strings);
    file.resize(file.len().next_multiple_of(8), 0);
    let symbols_at = file.len() as u64;
    let symbol_size = if form.is_64_bit { 24 } else { 16 };
    file.resize(file.len() + symbol_size, 0);
    // Name 1, a local function in section 1.
    if form.is_64_bit {
        form.put(&mut file, &[(1, 4), (2, 1), (0, 1), (1, 2), (TEXT, 0), (code_size, 0)]);
    } else {
        form.put(&mut file, &[(1, 4), (TEXT, 0), (code_size, 0), (2, 1), (0, 1), (1, 2)]);
    }
    let segments_at = file.len() as u64;
    for (kind, at, size, align) in [(1, TEXT, hdr_at + hdr_size - TEXT, 8), (0x6474_e550, hdr_at, hdr_size, 4)] {
        let place = [(at, 0), (at, 0), (at, 0), (size, 0), (size, 0)];
        let (before, after) = if form.is_64_bit { (&[(5, 4)][..], &[][..]) } else { (&[][..], &[(5, 4)][..]) };
        form.put(&mut file, &[&[(kind, 4)][..], before, &place, after, &[(align, 0)]].concat());
    }
    let sections_at = file.len() as u64;
    let section_size = 16 + 6 * form.word_size();
    file.resize(file.len() + section_size, 0);
    for (name, kind, flags, at, size, link, info, align, entry) in [
        (1, 1, 6, TEXT, code_size, 0, 0, 16, 0),
        (7, 1, 2, eh_frame_at, hdr_at - eh_frame_at, 0, 0, 8, 0),
        (17, 1, 2, hdr_at, hdr_size, 0, 0, 4, 0),
        (31, 3, 0, names_at, names.len() as u64, 0, 0, 1, 0),
        // The strings are section 6; symbols from 2 on are not local.
        (41, 2, 0, symbols_at, 2 * symbol_size as u64, 6, 2, 8, symbol_size as u64),
        (49, 3, 0, strings_at, strings.len() as u64, 0, 0, 1, 0),
    ] {
        let addr = if flags == 0 { 0 } else { at };
        let head = [(name, 4), (kind, 4), (flags, 0), (addr, 0), (at, 0), (size, 0), (link, 4), (info, 4)];
        form.put(&mut file, &[&head[..], &[(align, 0), (entry, 0)]].concat());
    }
    // Version 1; ET_DYN.
    let mut header = b"\x7fELF".to_vec();
    header.extend([1 + u8::from(form.is_64_bit), 1 + u8::from(form.is_big_endian), 1]);
    header.resize(16, 0);
    form.put(
        &mut header,
        &[(3, 2), (machine.into(), 2), (1, 4), (TEXT, 0), (segments_at, 0), (sections_at, 0), (flags, 4)],
    );
    let sizes = [40 + 3 * form.word_size(), 8 + 6 * form.word_size(), 2, section_size, 7, 4];
    sizes.iter().for_each(|&size| form.put(&mut header, &[(size as u64, 2)]));
    file[..header.len()].copy_from_slice(&header);
    file
}
