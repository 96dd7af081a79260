//! Writes line programs (DWARF 4, 6.2): one for each function, with its own tables of directories and files.

use gimli::leb128::write::{signed, unsigned};

use super::dwarf_function::{set_length, Function, Row};
use super::inlines::Inlines;
use super::name_numbers::{are_same, Numbers};
use crate::format::put::{word, WORD};

/// Special opcodes advance the line by -5 to 8, and the address by at most 17 bytes.
const LINE_BASE: i64 = -5;
const LINE_RANGE: u64 = 14;
const ADVANCE_MOST: u64 = 17;
const OPCODE_BASE: u64 = 13;

/// The beginning of a line program, before its tables of directories and files. The length of the line program and the length
/// of its header are filled in later.
const LINE_HEAD: &[u8] = &[
    0, 0, 0, 0, // length
    VERSION[0], VERSION[1], //
    0, 0, 0, 0, // length of the header from here
    1, 1, 1, // instructions of one byte, one operation each; rows are statements
    BASE, RANGE, OPCODES, //
    0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, // how many operands the standard opcodes have
];
const BASE: u8 = LINE_BASE as u8;
const RANGE: u8 = LINE_RANGE as u8;
const OPCODES: u8 = OPCODE_BASE as u8;
const VERSION: [u8; 2] = 4u16.to_ne_bytes();
/// Offset of the field for the header's length in a line program.
const LINE_HEADER_LENGTH: usize = 6;
const DW_LNS_COPY: u8 = 1;
const DW_LNS_ADVANCE_PC: u8 = 2;
const DW_LNS_ADVANCE_LINE: u8 = 3;
const DW_LNS_SET_FILE: u8 = 4;
const DW_LNS_SET_COLUMN: u8 = 5;
const DW_LNE_END_SEQUENCE: u8 = 1;
const DW_LNE_SET_ADDRESS: u8 = 2;

/// The beginning of a line program that has a single file. The bytes are kept, because the next function is often from the same
/// file.
#[derive(Debug, Default)]
pub struct Head {
    /// Whether file names are split into directory and base name, as valgrind needs: it treats a name without a directory as
    /// relative.
    pub splits_names: bool,
    file: Vec<u8>,
    bytes: Vec<u8>,
}

impl Head {
    /// Appends the beginning of a line program with this file. `None` if there is no memory.
    fn put(&mut self, file: &[u8], out: &mut Vec<u8>) -> Option<()> {
        if self.file != file || self.bytes.is_empty() {
            self.bytes.clear();
            self.file.clear();
            self.bytes.try_reserve(LINE_HEAD.len() + file.len() + 16).ok()?;
            self.file.try_reserve(file.len()).ok()?;
            put_head(std::iter::once(file), self.splits_names, &mut self.bytes)?;
            self.file.extend_from_slice(file);
        }
        out.extend_from_slice(&self.bytes);
        Some(())
    }
}

/// Appends a line program. The caller must have reserved the memory. Returns the offset of the function's address in the
/// program, and the numbers of the files.
pub fn lines<'a>(
    rows: &[Row<'a>],
    inlines: &Inlines<'a>,
    function: &Function<'_>,
    head: &mut Head,
    out: &mut Vec<u8>,
) -> Option<(u32, Numbers<'a>)> {
    let begin = out.len();
    let names = rows.iter().map(|(_, row)| row.file).chain(inlines.files());
    let mut files = Numbers::new(names.clone())?;
    let mut known: Option<(&[u8], u32)> = None;
    match files.only() {
        Some((file, number)) => {
            head.put(file, out)?;
            *number = 1;
            known = Some((file, 1));
        }
        None => files = put_head(names, head.splits_names, out)?,
    }

    out.extend_from_slice(&[0, 1 + WORD as u8, DW_LNE_SET_ADDRESS]);
    let set_address = out.len();
    out.extend_from_slice(&word(function.addr));
    // The initial state of a line program.
    let mut now = LineRow { offset: 0, line: 1, column: 0, file: 1 };
    for (offset, entry) in rows {
        let offset = (*offset)?;
        if offset >= function.size {
            break;
        }
        let file = match known {
            Some((name, file)) if are_same(name, entry.file) => file,
            _ => *files.of(entry.file)?,
        };
        known = Some((entry.file, file));
        let next = LineRow { offset, line: i64::from(entry.line), column: u64::from(entry.column), file: file.into() };
        now.step(&next, out)?;
        now = next;
    }
    out.push(DW_LNS_ADVANCE_PC);
    put_unsigned(out, function.size - now.offset);
    out.extend_from_slice(&[0, 1, DW_LNE_END_SEQUENCE]);
    set_length(out, begin)?;
    Some((u32::try_from(set_address - begin).ok()?, files))
}

/// Appends the beginning of a line program, with its tables of directories and files. Returns the number of each file, from 1
/// on. If `splits_names` is false, no file has a directory.
fn put_head<'a>(
    names: impl Iterator<Item = &'a [u8]> + Clone,
    splits_names: bool,
    out: &mut Vec<u8>,
) -> Option<Numbers<'a>> {
    let slash = |name: &[u8]| name.iter().rposition(|&byte| byte == b'/').filter(|&at| splits_names && at > 0);
    let dir_of = |name: &'a [u8]| slash(name).map_or(&name[..0], |at| &name[..at]);
    let (mut files, mut dirs) = (Numbers::new(names.clone())?, Numbers::new(names.clone().map(dir_of))?);
    let begin = out.len();
    out.extend_from_slice(LINE_HEAD);
    let (mut count, mut known) = (0, None);
    for dir in names.clone().map(dir_of).filter(|dir| !dir.is_empty()) {
        let number = dirs.of(dir)?;
        if *number == 0 {
            count += 1;
            *number = count;
            out.extend_from_slice(dir);
            out.push(0);
        }
    }
    out.push(0);
    count = 0;
    for name in names {
        if known.is_some_and(|known| are_same(known, name)) {
            continue;
        }
        known = Some(name);
        let number = files.of(name)?;
        if *number == 0 {
            count += 1;
            *number = count;
            out.extend_from_slice(slash(name).map_or(name, |at| &name[at + 1..]));
            out.push(0);
            put_unsigned(out, (*dirs.of(dir_of(name))?).into());
            // Modification time and size are unknown.
            out.extend_from_slice(&[0, 0]);
        }
    }
    out.push(0);
    set_length(out, begin + LINE_HEADER_LENGTH)?;
    Some(files)
}

struct LineRow {
    offset: u64,
    line: i64,
    column: u64,
    file: u64,
}

impl LineRow {
    /// Writes the opcodes that lead from this row to the row `next`. `None` if `next` has a lower offset.
    fn step(&self, next: &LineRow, out: &mut Vec<u8>) -> Option<()> {
        let advance = next.offset.checked_sub(self.offset)?;
        if next.file != self.file {
            out.push(DW_LNS_SET_FILE);
            put_unsigned(out, next.file);
        }
        if next.column != self.column {
            out.push(DW_LNS_SET_COLUMN);
            put_unsigned(out, next.column);
        }
        let lines = next.line - self.line;
        // A negative difference becomes a huge number, which fails the check below.
        let above_base = (lines - LINE_BASE) as u64;
        let has_special = above_base < LINE_RANGE && advance <= ADVANCE_MOST;
        let special = OPCODE_BASE.wrapping_add(above_base).wrapping_add(advance.wrapping_mul(LINE_RANGE));
        if has_special && special <= u8::MAX.into() {
            out.push(special as u8);
        } else {
            out.push(DW_LNS_ADVANCE_LINE);
            put_signed(out, lines);
            out.push(DW_LNS_ADVANCE_PC);
            put_unsigned(out, advance);
            out.push(DW_LNS_COPY);
        }
        Some(())
    }
}

fn put_unsigned(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        // Writing to a vector cannot fail.
        let _ = unsigned(out, value);
    }
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    let _ = signed(out, value);
}
