//! A sorted map from addresses to numbers: blocks of sorted entries, and a sorted list of the blocks.
//!
//! Compilers fill their memory upwards, so a new entry mostly follows the entry that was added last. A search therefore first
//! tries the block to which the last entry was added. With a tree instead of blocks, searches from the root took two fifths of
//! the writer's instructions.

/// The largest number of entries in a block.
const MOST: usize = 128;

#[derive(Debug, Default)]
pub struct Ordered {
    /// The head of each block, in order of address. No block is empty.
    heads: Vec<Head>,
    blocks: Vec<Block>,
    len: usize,
    /// The index in `heads` of the block to which the last entry was added.
    recent: usize,
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
struct Head {
    first: u64,
    block: u32,
    len: u32,
}

#[derive(Clone, Debug)]
struct Block {
    keys: [u64; MOST],
    values: [u32; MOST],
}

/// A position between two entries of a block.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The index of the block in `heads`.
    head: usize,
    /// Number of the block's entries before this position. This number is 0 only if the map has no entry before the position.
    at: usize,
}

impl Ordered {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Makes room for more entries. False if memory is short.
    #[inline]
    pub fn make_room(&mut self, more: usize) -> bool {
        self.heads.try_reserve(more).is_ok() && self.blocks.try_reserve(more).is_ok()
    }

    /// The position after all entries whose address is below `addr`.
    #[inline]
    pub fn place(&self, addr: u64) -> Place {
        let is_below = |head: &Head| head.first < addr;
        let is_recent =
            self.heads.get(self.recent).is_some_and(is_below) && !self.heads.get(self.recent + 1).is_some_and(is_below);
        let head = if is_recent { self.recent } else { self.heads.partition_point(is_below).saturating_sub(1) };
        let Some(&Head { block, len, .. }) = self.heads.get(head) else { return Place { head, at: 0 } };
        let keys = &self.blocks[block as usize].keys[..len as usize];
        let is_last = keys.last().is_some_and(|&last| last < addr);
        Place { head, at: if is_last { keys.len() } else { keys.partition_point(|&key| key < addr) } }
    }

    #[inline]
    pub fn before(&self, place: Place) -> Option<(u64, u32)> {
        let at = place.at.checked_sub(1)?;
        let Block { keys, values } = &self.blocks[self.heads[place.head].block as usize];
        Some((keys[at], values[at]))
    }

    pub fn last_below(&self, addr: u64) -> Option<(u64, u32)> {
        self.before(self.place(addr))
    }

    /// All entries whose address is at least `addr`, in order of address.
    pub fn from(&self, addr: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let Place { head, at } = self.place(addr);
        let heads = self.heads.get(head..).unwrap_or_default().iter();
        let entries = heads.flat_map(|head| {
            let Block { keys, values } = &self.blocks[head.block as usize];
            keys.iter().copied().zip(values.iter().copied()).take(head.len as usize)
        });
        entries.skip(at)
    }

    pub fn values(&self) -> impl Iterator<Item = u32> + '_ {
        self.from(0).map(|(_, value)| value)
    }

    /// Adds an entry at `place`, the position of `key`. The map must have room, and must not have an entry with this key.
    #[inline]
    pub fn insert(&mut self, place: Place, key: u64, value: u32) {
        let is_full = self.heads.get(place.head).is_none_or(|head| head.len as usize == MOST);
        let Place { head, at } = if is_full { self.split(place, value) } else { place };
        let Head { first, block, len } = &mut self.heads[head];
        let Block { keys, values } = &mut self.blocks[*block as usize];
        let end = *len as usize;
        if at < end {
            keys.copy_within(at..end, at + 1);
            values.copy_within(at..end, at + 1);
        }
        (keys[at], values[at]) = (key, value);
        (*first, *len) = (keys[0], *len + 1);
        self.len += 1;
        self.recent = head;
    }

    /// Splits a full block, or makes the first block. Returns the position for the new entry. If the position is at the end of
    /// a full block, the function moves no entry, and adds an empty block after the full block. So blocks get full if entries
    /// are added in order of address.
    #[cold]
    #[inline(never)]
    fn split(&mut self, Place { head, at }: Place, value: u32) -> Place {
        let block = self.blocks.len() as u32;
        let Some(&Head { block: old, len, .. }) = self.heads.get(head) else {
            self.blocks.push(Block { keys: [0; MOST], values: [value; MOST] });
            self.heads.push(Head { first: 0, block, len: 0 });
            return Place { head, at };
        };
        let kept = if at == MOST { MOST } else { MOST / 2 };
        self.blocks.push(self.blocks[old as usize].clone());
        let Block { keys, values } = &mut self.blocks[block as usize];
        keys.copy_within(kept.., 0);
        values.copy_within(kept.., 0);
        let first = keys[0];
        self.heads[head].len = kept as u32;
        self.heads.insert(head + 1, Head { first, block, len: len - kept as u32 });
        match at.checked_sub(kept) {
            Some(at) if at > 0 || kept == MOST => Place { head: head + 1, at },
            _ => Place { head, at },
        }
    }

    /// Removes an entry, which must exist.
    pub fn remove(&mut self, key: u64) {
        let Place { head, at } = self.place(key + 1);
        let Head { first, block, len } = &mut self.heads[head];
        let Block { keys, values } = &mut self.blocks[*block as usize];
        debug_assert_eq!(keys[at - 1], key);
        keys.copy_within(at..*len as usize, at - 1);
        values.copy_within(at..*len as usize, at - 1);
        (*first, *len) = (keys[0], *len - 1);
        self.len -= 1;
        self.unite(head);
        self.unite(head.wrapping_sub(1));
    }

    /// Merges a block with the next block if the two blocks together have few entries. Drops the block if it is empty.
    fn unite(&mut self, head: usize) {
        let Some(&low) = self.heads.get(head) else { return };
        let gone = match self.heads.get(head + 1) {
            _ if low.len == 0 => head,
            Some(&high) if (low.len + high.len) as usize <= MOST / 2 => {
                let upper = self.blocks[high.block as usize].clone();
                let Block { keys, values } = &mut self.blocks[low.block as usize];
                let (from, to) = (low.len as usize, (low.len + high.len) as usize);
                keys[from..to].copy_from_slice(&upper.keys[..to - from]);
                values[from..to].copy_from_slice(&upper.values[..to - from]);
                self.heads[head].len = to as u32;
                head + 1
            }
            _ => return,
        };
        let block = self.heads.remove(gone).block;
        self.blocks.swap_remove(block as usize);
        let moved = self.blocks.len() as u32;
        self.heads.iter_mut().filter(|head| head.block == moved).for_each(|head| head.block = block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn insert(starts: &mut Ordered, key: u64, number: u32) {
        assert!(starts.make_room(1));
        let place = starts.place(key);
        starts.insert(place, key, number);
    }

    fn check(starts: &Ordered, truth: &BTreeMap<u64, u32>, addr: u64) {
        let below = truth.range(..addr).next_back().map(|(&key, &number)| (key, number));
        assert_eq!(starts.last_below(addr), below);
        assert!(starts.from(addr).take(3).eq(truth.range(addr..).take(3).map(|(&key, &number)| (key, number))));
    }

    #[test]
    fn it_says_what_a_tree_says() {
        let (mut starts, mut truth, mut random) = (Ordered::default(), BTreeMap::new(), 1u64);
        for round in 0..60_000u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = match round / 10_000 {
                0 => round * 8,
                1 => (1 << 40) + (20_000 - round) * 8,
                // In the end, few entries and few blocks are left.
                _ => (random >> 40) % 20_000 * 8,
            };
            if truth.remove(&key).is_some() {
                starts.remove(key);
            } else if round < 40_000 {
                truth.insert(key, round as u32);
                insert(&mut starts, key, round as u32);
            }
            [key, key + 1, random % 160_000, random].iter().for_each(|&addr| check(&starts, &truth, addr));
            assert_eq!(starts.len(), truth.len());
        }
        assert!(starts.from(0).eq(truth.iter().map(|(&key, &number)| (key, number))));
        truth.keys().skip(10).for_each(|&key| starts.remove(key));
        assert_eq!((starts.len(), starts.blocks.len(), starts.heads.len()), (10, 1, 1));
        truth.keys().take(10).for_each(|&key| starts.remove(key));
        assert_eq!((starts.len(), starts.blocks.len(), starts.from(0).count()), (0, 0, 0));
    }

    #[test]
    fn entries_that_come_in_order_fill_their_blocks() {
        let mut starts = Ordered::default();
        (0..10 * MOST as u64).for_each(|key| insert(&mut starts, key, 0));
        assert_eq!(starts.blocks.len(), 10);
    }
}
