//! Reads the bytes of code from memory. One system call reads many functions, because runtimes place functions next to each
//! other.

use crate::sys::process_memory;

/// How many bytes are read at once if the code follows the code that was read last.
const AHEAD: u64 = 16 << 10;
/// The maximum gap between two pieces of code that count as neighbours.
const GAP: u64 = 256;

pub struct ReadAhead {
    pid: u32,
    start: u64,
    bytes: Vec<u8>,
    last_end: u64,
}

impl ReadAhead {
    /// `pid` is the pid of this process.
    pub fn new(pid: u32) -> ReadAhead {
        ReadAhead { pid, start: 0, bytes: Vec::new(), last_end: 0 }
    }

    /// Returns the bytes of code, or an empty slice if the memory cannot be read. This function is needed because some records
    /// do not contain the bytes of their code while no jitdump runs.
    pub fn read(&mut self, addr: u64, size: u64) -> &[u8] {
        let is_neighbour = addr.checked_sub(self.last_end).is_some_and(|gap| gap <= GAP);
        self.last_end = addr.saturating_add(size);
        if self.held(addr, size).is_none() {
            let lens = [if is_neighbour { size.max(AHEAD) } else { size }, size];
            self.bytes.clear();
            // The memory after the code may be unreadable.
            let read =
                lens.iter().find_map(|&len| process_memory::copy(self.pid, addr, len).ok().filter(|(_, whole)| *whole));
            (self.start, self.bytes) = (addr, read.map_or_else(Vec::new, |(bytes, _)| bytes));
        }
        self.held(addr, size).map_or(&[], |range| &self.bytes[range])
    }

    fn held(&self, addr: u64, size: u64) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(addr.checked_sub(self.start)?).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        (end <= self.bytes.len()).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let code: Vec<u8> = (0..5 * AHEAD as u32).map(|number| (number % 251) as u8).collect();
        let mut memory = ReadAhead::new(std::process::id());
        let at = |offset: usize| code.as_ptr() as u64 + offset as u64;
        let (mut reads, mut start) = (0, 0);
        for offset in (0..3 * AHEAD as usize - 100).step_by(90) {
            assert_eq!(memory.read(at(offset), 80), &code[offset..offset + 80]);
            reads += usize::from(memory.start != start);
            start = memory.start;
        }
        // The first piece of code is read alone, because it has no neighbour yet.
        assert_eq!(reads, 1 + 3);
        for offset in [7, 20_000, 6] {
            assert_eq!(memory.read(at(offset), 80), &code[offset..offset + 80]);
        }
        // No memory is mapped at these addresses.
        assert!(memory.read(8, 80).is_empty() && memory.read(90, 80).is_empty());
        assert_eq!(memory.read(at(1), 3), &code[1..4]);
    }
}
