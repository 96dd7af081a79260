//! ELF files laid out as those that `perf inject --jit` makes of each function (linux tools/perf/util/genelf.c), for any machine.
#![allow(dead_code)]

/// Where perf puts the code, in the file and in its addresses (genelf.h, `GEN_ELF_TEXT_OFFSET`).
pub const TEXT: u64 = 0x80;

fn put(file: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| file.extend(word.to_le_bytes()));
}

/// A file with `.text`, `.eh_frame`, `.eh_frame_hdr` and a symbol, and beyond what perf writes the program header that
/// `llvm-readobj` finds `.eh_frame_hdr` by. `machine` is that of the header of the jitdump.
pub fn object(machine: u16, code: &[u8], eh_frame: &[u8], hdr: &[u8], symbol: &str) -> Vec<u8> {
    // Of riscv64: calls with floating-point registers, and compressed instructions.
    let flags = if machine == 243 { 5u32 } else { 0 };
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
    // Name 1, a local function in section 1.
    put(&mut file, &[0, 0, 0, 1 | 2 << 32 | 1 << 48, TEXT, code_size]);
    let segments_at = file.len() as u64;
    for (kind, at, size, align) in [(1, TEXT, hdr_at + hdr_size - TEXT, 8), (0x6474_e550, hdr_at, hdr_size, 4)] {
        put(&mut file, &[kind | 5 << 32, at, at, at, size, size, align]);
    }
    let sections_at = file.len() as u64;
    put(&mut file, &[0; 8]);
    for (name, kind, flags, at, size, link, align, entry) in [
        (1, 1, 6, TEXT, code_size, 0, 16, 0),
        (7, 1, 2, eh_frame_at, hdr_at - eh_frame_at, 0, 8, 0),
        (17, 1, 2, hdr_at, hdr_size, 0, 4, 0),
        (31, 3, 0, names_at, names.len() as u64, 0, 1, 0),
        // The strings are section 6; symbols from 2 on are not local.
        (41, 2, 0, symbols_at, 48, 6 | 2 << 32, 8, 24),
        (49, 3, 0, strings_at, strings.len() as u64, 0, 1, 0),
    ] {
        let addr = if flags == 0 { 0 } else { at };
        put(&mut file, &[name | kind << 32, flags, addr, at, size, link, align, entry]);
    }
    // ELF64, little-endian, version 1; ET_DYN.
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend([3u16, machine, 1, 0].into_iter().flat_map(u16::to_le_bytes));
    put(&mut header, &[TEXT, segments_at, sections_at]);
    header.extend(flags.to_le_bytes());
    header.extend([64u16, 56, 2, 64, 7, 4].into_iter().flat_map(u16::to_le_bytes));
    file[..header.len()].copy_from_slice(&header);
    file
}
