//! Checks whether gdb and lldb find the library in a program. gdb and lldb search for two of the library's symbols by name.

use std::ffi::OsStr;
use std::path::Path;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSymbol};

use super::Report;
use crate::open;
use crate::record::perf::find_program;
use crate::text::Shown;

/// The symbols that debuggers search for (gdb, "JIT Compilation Interface").
const SYMBOLS: [&str; 2] = ["__jit_debug_register_code", "__jit_debug_descriptor"];
/// A string of the library that every statically linked program contains.
const MARK: &[u8] = b"JITSYM_SPOOL_DIR";
/// Larger programs are not searched.
const MOST: u64 = 512 << 20;

/// Checks the file of the program with this name.
pub fn look_at_program(name: &OsStr, report: &mut Report) {
    find_program(name).inspect(|path| look(path, report));
}

/// Checks the program at this path.
pub fn look(path: &Path, report: &mut Report) {
    let file = open::named(path).ok().filter(|file| file.metadata().is_ok_and(|data| data.len() <= MOST));
    let Some(bytes) = file.and_then(|file| open::read(&file).ok()) else { return };
    if is_silent(&bytes) {
        report.aside(format!(
            "gdb and lldb see no compiled code of {}: libjitsym is linked in statically, and `strip` has removed the symbols that \
             they look for. Best link with '-Wl,--export-dynamic-symbol=__jit_debug_*'. Or strip with --keep-symbol={} --keep-symbol={}",
            path.shown(),
            SYMBOLS[0],
            SYMBOLS[1]
        ));
    }
}

/// Whether the library is linked into the file, but both symbol tables of the file lack the symbols.
fn is_silent(bytes: &[u8]) -> bool {
    let Ok(file) = ElfFile64::<Endianness>::parse(bytes) else { return false };
    let has = |name: &str| {
        let is_it = |symbol: object::read::elf::ElfSymbol64<'_, '_, Endianness>| {
            !symbol.is_undefined() && symbol.name_bytes() == Ok(name.as_bytes())
        };
        file.symbols().any(is_it) || file.dynamic_symbols().any(is_it)
    };
    let is_inside = || bytes.windows(MARK.len()).any(|window| window == MARK);
    !SYMBOLS.iter().all(|name| has(name)) && is_inside()
}
