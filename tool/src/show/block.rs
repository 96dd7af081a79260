//! Prints one function with source lines, rows of the unwind table and instructions side by side.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::text::printable;

/// Texts, each with the address from which it applies.
pub type Column = Vec<(u64, String)>;

/// The maximum width of a column that is aligned.
const WIDTH_MAX: usize = 56;

/// Prints the columns that are not empty, by offset from the start of the code.
pub fn write<const COUNT: usize>(base: u64, columns: [Column; COUNT], out: &mut dyn Write) -> io::Result<()> {
    let width = |column: &Column| column.iter().map(|(_, text)| text.chars().count()).max().unwrap_or(0).min(WIDTH_MAX);
    let widths = columns.each_ref().map(width);
    let mut rows: BTreeMap<i64, [Vec<String>; COUNT]> = BTreeMap::new();
    for (number, column) in columns.into_iter().enumerate() {
        for (addr, text) in column {
            let cells = rows.entry(addr.wrapping_sub(base) as i64).or_insert_with(|| [const { Vec::new() }; COUNT]);
            cells[number].push(text);
        }
    }
    for (offset, cells) in rows {
        let sign = if offset < 0 { '-' } else { '+' };
        let mut label = format!("{sign}{:#x}", offset.unsigned_abs());
        for line in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let mut text = format!("    {label:8}");
            for (cells, width) in cells.iter().zip(widths).filter(|(_, width)| *width > 0) {
                let cell = cells.get(line).map_or("", String::as_str);
                text += &format!("  {cell:width$}");
            }
            writeln!(out, "{}", text.trim_end())?;
            label.clear();
        }
    }
    Ok(())
}

/// Collects source lines for printing. The file is printed only when it changes.
#[derive(Default)]
pub struct Lines {
    file: Vec<u8>,
    column: Column,
}

impl Lines {
    /// Adds a line that begins at this address.
    pub fn add(&mut self, addr: u64, file: &[u8], line: u64, column: u64) {
        let shown =
            if self.file == file && !self.column.is_empty() { String::new() } else { printable(file).to_string() };
        self.file = file.to_vec();
        let column = if column == 0 { String::new() } else { format!(":{column}") };
        self.column.push((addr, format!("{shown}:{line}{column}")));
    }

    /// The finished column.
    pub fn finish(self) -> Column {
        self.column
    }
}
