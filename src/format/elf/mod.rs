//! The ELF file of a code region: a shared object with one page of headers, tables that are only appended to, and the code.
//! Addresses in it are offsets in the file (System V ABI, "Object Files"; LSB 5.0 Core, 10.6, for the search table).
//!
//! Everything here is made for one function at a time, so that the next one costs as much as the first.

pub mod debug;
pub mod executable;
pub mod frames;
pub mod header;
pub mod inlines;
pub mod line_program;
mod numbers;
pub mod object;
pub mod read;
pub mod search;
#[cfg(test)]
mod tests;
mod unit;
use super::put::Put;

/// Size of a symbol.
pub const SYMBOL_SIZE: usize = 24;

/// The section `.text`, in symbols.
const TEXT: u8 = 1;

/// `STB_LOCAL`, `STT_FUNC`. Local, as in the objects that perf makes of a jitdump: no two of those may not have one name, and
/// perf takes them all the same (linux tools/perf/util/symbol-elf.c, `elf_sym__is_function`).
const LOCAL_FUNCTION: u8 = 2;

/// `STB_LOCAL`, `STT_COMMON`.
const LOCAL_COMMON: u8 = 5;

/// How many bytes at the beginning of code are left out of what a file says of its lines. perf 6 asks addr2line for address 0 to know
/// where its answer to another question ends, and waits for one that knows nothing (linux tools/perf/util/srcline.c). addr2line looks
/// for symbols of the section that the address lies in. So the section of code at address 0 is another one than `TEXT`.
pub fn hidden(addr: u64) -> u64 {
    u64::from(addr == 0)
}

/// A function in `.symtab`. `name` is an offset in `.strtab`.
pub fn symbol(name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    symbol_in(TEXT.into(), name, addr, size)
}

/// A further symbol for code at address 0, of all bytes but the first one. It is for readers that leave out symbols at address 0, and
/// take those of any type (bcc src/cc/bcc_elf.c). The others leave out those that are no functions. Of two functions perf would make
/// two rows.
pub fn symbol_after_0(name: u32, size: u64) -> [u8; SYMBOL_SIZE] {
    put_symbol(LOCAL_COMMON, TEXT.into(), name, 1, size - 1)
}

/// A function in the section of this number.
pub fn symbol_in(section: u16, name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    put_symbol(LOCAL_FUNCTION, section, name, addr, size)
}

fn put_symbol(info: u8, section: u16, name: u32, addr: u64, size: u64) -> [u8; SYMBOL_SIZE] {
    let mut out = [0; SYMBOL_SIZE];
    let mut put = Put::new(&mut out);
    put.u32(name);
    put.u8(info);
    put.u8(0);
    put.u16(section);
    put.u64(addr);
    put.u64(size);
    debug_assert!(put.is_full());
    out
}
