//! Allocates trampolines outside of regions, from blocks of private memory.
//!
//! Before the code of a block can run, the block is filled with copies of one trampoline. Nobody writes to the block later, so
//! the block needs no second view. Profilers find the names of code in private memory in a perf map, and a forked child has the
//! code without a copy.

use std::collections::{BTreeMap, VecDeque};
use std::{io, ptr};

use super::arena::RESTING_MIN;
use crate::format::arch::NATIVE;
use crate::format::trampoline::Trampoline;
use crate::sys::code_memory::{self, READ_EXEC, READ_WRITE};
use crate::sys::mapping::{page_size, OwnedMapping, PRIVATE};

/// The first block of a kind has one page. Each further block has twice the length of the block before, up to this length.
const BLOCK_MAX: u64 = 64 << 10;

/// What all trampolines of a block have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub target: u64,
    pub words: u32,
    /// Whether the bytes after each trampoline stay free of other code: see `JITSYM_CODE_GAP` in the C header.
    pub gap: bool,
}

#[derive(Debug, Default)]
pub struct Copies {
    blocks: Vec<Block>,
    /// The index of each block in `blocks`, by the start address of the block.
    starts: BTreeMap<u64, u64>,
    /// Sorted by kind.
    kinds: Vec<(Kind, Free)>,
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    stride: u64,
    /// Whether a caller owns the trampoline, for each trampoline of the block.
    owned: Vec<bool>,
}

/// The trampolines of one kind that nobody owns.
#[derive(Debug, Default)]
struct Free {
    /// The addresses in the last block that nobody has owned yet, in descending order.
    new: Vec<u64>,
    /// The addresses that were freed. They rest until this many bytes are free, because a perf map tells nothing about times.
    freed: VecDeque<u64>,
    /// The length of the last block.
    last_len: u64,
}

impl Copies {
    /// Returns the address of a trampoline. `stride` is the number of bytes from one trampoline of this kind to the next. Fails
    /// if there is no memory, or if the system does not let memory become executable.
    pub fn take(&mut self, kind: Kind, stride: u64) -> io::Result<u64> {
        let place = self.place_of(kind)?;
        let free = &mut self.kinds[place].1;
        let rested = if free.freed.len() as u64 * stride >= RESTING_MIN { free.freed.pop_front() } else { None };
        let exec = match rested.or_else(|| free.new.pop()) {
            Some(exec) => exec,
            None => {
                let page = page_size() as u64;
                let len = (2 * free.last_len).clamp(page, BLOCK_MAX.max(page)).max(stride.next_multiple_of(page));
                let count = (len / stride) as usize;
                let mut owned = Vec::new();
                owned.try_reserve_exact(count)?;
                self.blocks.try_reserve(1)?;
                free.new.try_reserve_exact(count)?;
                let start = filled(kind, stride, len)?;
                owned.resize(count, false);
                free.new.extend((1..count as u64).rev().map(|number| start + number * stride));
                free.last_len = len;
                self.starts.insert(start, self.blocks.len() as u64);
                self.blocks.push(Block { kind, stride, owned });
                start
            }
        };
        if let Some((block, number)) = self.find(exec) {
            block.owned[number] = true;
        }
        Ok(exec)
    }

    /// Returns the length of a trampoline that a caller owns.
    pub fn owned_len(&mut self, exec: u64) -> Option<u64> {
        self.find(exec).and_then(|(block, number)| block.owned[number].then_some(block.stride))
    }

    /// Frees a trampoline that a caller owns.
    pub fn free(&mut self, exec: u64) {
        let Some((block, number)) = self.find(exec) else { return };
        block.owned[number] = false;
        let kind = block.kind;
        // Without memory for the entry, the trampoline is not used again.
        let Ok(place) = self.place_of(kind) else { return };
        let freed = &mut self.kinds[place].1.freed;
        if freed.try_reserve(1).is_ok() {
            freed.push_back(exec);
        }
    }

    /// In a forked child: later trampolines get new blocks, because perf looks for the names of code in the perf map of the
    /// process that mapped the memory.
    pub fn leave_to_parent(&mut self) {
        self.kinds.clear();
    }

    fn place_of(&mut self, kind: Kind) -> io::Result<usize> {
        let place = self.kinds.partition_point(|(other, _)| *other < kind);
        if self.kinds.get(place).is_none_or(|(other, _)| *other != kind) {
            self.kinds.try_reserve(1)?;
            self.kinds.insert(place, (kind, Free::default()));
        }
        Ok(place)
    }

    fn find(&mut self, exec: u64) -> Option<(&mut Block, usize)> {
        let (start, index) = self.starts.range(..=exec).next_back()?;
        let block = self.blocks.get_mut(*index as usize)?;
        let place = exec - start;
        let number = (place / block.stride) as usize;
        (place.is_multiple_of(block.stride) && number < block.owned.len()).then_some((block, number))
    }
}

/// Maps a block, and fills it.
fn filled(kind: Kind, stride: u64, len: u64) -> io::Result<u64> {
    let made =
        NATIVE.and_then(|arch| Trampoline::new(arch, kind.target, kind.words)).ok_or(io::ErrorKind::Unsupported)?;
    let mapping = OwnedMapping::new(len as usize, READ_WRITE, PRIVATE, None)?;
    let start = mapping.start().as_ptr() as u64;
    for number in 0..len / stride {
        let to = (start + number * stride) as *mut u8;
        // SAFETY: the trampoline lies in the mapping, which nobody else knows of.
        unsafe { ptr::copy_nonoverlapping(made.bytes().as_ptr(), to, made.bytes().len()) };
    }
    // SAFETY: as above.
    unsafe {
        code_memory::protect(start, len, READ_EXEC)?;
        code_memory::clear_instruction_cache(start, len);
    }
    mapping.leak();
    Ok(start)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    extern "C" fn twice(number: u64) -> u64 {
        2 * number
    }

    /// Trampolines work, begin at different addresses, and rest when they are freed.
    #[test]
    fn come_and_go() {
        let mut copies = Copies::default();
        for (stride, gap) in [(64, false), (320, true)] {
            let kind = Kind { target: twice as *const () as u64, words: 0, gap };
            let all: Vec<u64> = (0..3000).map(|_| copies.take(kind, stride).unwrap()).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            for (&exec, number) in all.iter().zip(0..) {
                // SAFETY: the trampoline has the type of its target.
                let entry: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(exec) };
                assert_eq!((entry(number), copies.owned_len(exec)), (2 * number, Some(stride)));
            }
            // As long as less than `RESTING_MIN` bytes are free, no address is used again. Then the oldest are.
            let rest = RESTING_MIN.div_ceil(stride) as usize;
            let more = (0..rest + 2).map(|_| copies.take(kind, stride).unwrap()).collect::<Vec<_>>();
            more[..rest - 1].iter().for_each(|&exec| copies.free(exec));
            assert!(!more.contains(&copies.take(kind, stride).unwrap()));
            more[rest - 1..].iter().for_each(|&exec| copies.free(exec));
            assert_eq!((0..2).map(|_| copies.take(kind, stride).unwrap()).collect::<Vec<_>>(), more[..2]);
            assert_eq!(copies.owned_len(more[2]), None);
        }
    }

    /// Blocks become larger. Addresses that no caller owns are left alone.
    #[test]
    fn blocks() {
        let (mut copies, page) = (Copies::default(), page_size() as u64);
        let kind = Kind { target: 1, words: 3, gap: false };
        let exec = copies.take(kind, 64).unwrap();
        let lens =
            |copies: &Copies| -> Vec<u64> { copies.blocks.iter().map(|block| 64 * block.owned.len() as u64).collect() };
        assert_eq!((lens(&copies), copies.owned_len(exec + 64), copies.owned_len(exec + 1)), (vec![page], None, None));
        copies.free(exec + 1);
        copies.free(page);
        (0..3 * BLOCK_MAX / 64).for_each(|_| _ = copies.take(kind, 64).unwrap());
        let lens = lens(&copies);
        assert!(lens.iter().max() <= Some(&BLOCK_MAX.max(page)) && lens.iter().sum::<u64>() <= 5 * BLOCK_MAX.max(page));
        copies.leave_to_parent();
        assert_eq!((copies.take(kind, 64).is_ok(), copies.owned_len(exec)), (true, Some(64)));
        assert_eq!(copies.blocks.len(), lens.len() + 1);
    }
}
