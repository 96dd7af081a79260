//! When the tables are about much code that has been replaced, so that the file is worth writing anew.

use super::{RegionFile, SYMBOL_SIZE};

impl RegionFile {
    /// How many symbols there have been, and of how much code they still are.
    fn symbols(&self) -> (u64, u64) {
        (self.parts.symtab.end() / SYMBOL_SIZE as u64, self.known.len() as u64)
    }

    /// Whether there have been more symbols than this percentage of the code there is, and some.
    pub fn is_wasteful(&self, percent: u64) -> bool {
        let (symbols, known) = self.symbols();
        symbols > known * percent / 100 + 512
    }

    /// Whether the unwind tables of code that has been replaced will soon leave no room for others.
    pub fn is_nearly_full(&self) -> bool {
        let (eh_frame, (symbols, known)) = (&self.parts.eh_frame, self.symbols());
        eh_frame.end() > eh_frame.room() / 4 * 3 && symbols > known * 5 / 4 + 1
    }
}
