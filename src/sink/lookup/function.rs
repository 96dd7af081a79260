//! Finds the function, the inlined functions and the line at an address in a piece of code.

use super::Found;
use crate::api::code::Inline;
use crate::format::jitdump::inlines;
use crate::format::name_and_file::without_place;

/// A function at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function<'a> {
    pub name: &'a [u8],
    /// The file and the line in this function. Empty and 0 if unknown.
    pub file: &'a [u8],
    pub line: u32,
    pub column: u32,
    /// Whether this function is inlined into the next function outward.
    pub is_inlined: bool,
}

impl<'a> Found<'a> {
    /// The functions at an address in the code, numbered from 0, the innermost inlined function, to the function that is not
    /// inlined. `None` if there is no function with this number. A signal handler may call this method.
    pub fn function_at(&self, addr: u64, number: usize) -> Option<Function<'a>> {
        if !self.has_source() {
            return (number == 0).then(|| Function { name: self.name(), ..Function::default() });
        }
        let parts = self.info().parts();
        let offset = addr - self.addr();
        // At most one of the inlined functions with the same parent contains the address, and a parent precedes its children.
        // So the inlined functions that contain the address are in order, the outermost first.
        let inlined = || {
            let contains =
                move |inline: &Inline<'_>| u64::from(inline.begin) <= offset && offset < u64::from(inline.end);
            parts.inlines.into_iter().flat_map(|record| inlines::entries(&record)).filter(contains)
        };
        let count = inlined().count();
        let own = inlined().nth(count.wrapping_sub(number + 1));
        let name = match own {
            Some(inline) => inline.name,
            None if number == count => without_place(self.name(), self.info()),
            None => return None,
        };
        let (file, line, column) = match number.checked_sub(1) {
            None => self.line_at(offset).unwrap_or_default(),
            Some(inner) => {
                let call = inlined().nth(count - number).filter(|_| inner < count)?;
                (call.call_file, call.call_line, call.call_column)
            }
        };
        Some(Function { name, file, line, column, is_inlined: own.is_some() })
    }

    /// The file, the line and the column of the instruction at an offset in the code.
    fn line_at(&self, offset: u64) -> Option<(&'a [u8], u32, u32)> {
        let lines = self.info().lines()?;
        // The record of code that has moved still contains the old address.
        let rows = lines.entries().take_while(|row| row.addr.wrapping_sub(lines.addr) <= offset);
        rows.last().map(|row| (row.file, row.line, row.column))
    }
}
