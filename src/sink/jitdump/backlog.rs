//! Tracks where each group of a jitdump is: in the file, or in the backlog of groups that could not be written yet.
//!
//! A group is identified by its position in the order of all groups. The position is counted in bytes, as if every group had
//! been written to one file. In the simplest case (no fork, no failed write, no other writer), the position is the group's
//! offset in the file.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::registry::Stored;
use crate::sink::owned_file::OwnedFile;
use crate::sys::mapping::View;

/// The offsets of the written groups, with one entry for each sequence of consecutive groups. The key is the position of the
/// sequence's first group. The value is the offset at which the sequence begins in the file, or `NOWHERE`.
#[derive(Debug, Default)]
pub struct Places(BTreeMap<u64, u64>);

/// The value in `Places` that stands for groups that are not in the file.
const NOWHERE: u64 = u64::MAX;

impl Places {
    /// Records that a sequence of consecutive groups has been written. Groups after the sequence count as written only if
    /// another call of `set` covers them.
    pub fn set(&mut self, order: u64, len: u64, offset: u64) {
        self.0.entry(order + len).or_insert(NOWHERE);
        if order.checked_sub(1).and_then(|last| self.get(last)).is_some_and(|last| last + 1 == offset) {
            self.0.remove(&order);
        } else {
            self.0.insert(order, offset);
        }
    }

    /// The offset of a group in the file. `None` if the group is not in the file.
    pub fn get(&self, order: u64) -> Option<u64> {
        let (&at, &place) = self.0.range(..=order).next_back()?;
        (place != NOWHERE).then(|| place + (order - at))
    }
}

/// Groups that wait to be written.
#[derive(Debug, Default)]
pub struct Backlog {
    /// The groups, sorted by their position in the order of all groups.
    groups: VecDeque<(u64, Arc<Vec<u8>>)>,
    bytes: usize,
    most: usize,
}

impl Backlog {
    /// Makes a backlog that holds at most `most` bytes.
    pub fn new(most: usize) -> Backlog {
        Backlog { most, ..Backlog::default() }
    }

    pub fn len(&self) -> usize {
        self.groups.len()
    }

    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_tight(&self) -> bool {
        self.bytes > self.most / 8 * 7
    }

    /// Keeps a copy of a group that is given in pieces. Returns false if there is no room for the group.
    pub fn add(&mut self, order: u64, len: usize, pieces: &[&[u8]]) -> bool {
        let mut group = Vec::new();
        if self.bytes + len > self.most || group.try_reserve_exact(len).is_err() || self.groups.try_reserve(1).is_err()
        {
            return false;
        }
        pieces.iter().for_each(|piece| group.extend_from_slice(piece));
        self.bytes += len;
        match self.place_of(order) {
            Ok(at) => self.groups[at].1 = Arc::new(group),
            Err(at) => self.groups.insert(at, (order, Arc::new(group))),
        }
        true
    }

    fn place_of(&self, order: u64) -> Result<usize, usize> {
        self.groups.binary_search_by_key(&order, |&(at, _)| at)
    }

    pub fn get(&self, order: u64) -> Option<&[u8]> {
        self.place_of(order).ok().map(|at| self.groups[at].1.as_slice())
    }

    /// Returns the oldest groups, but not more groups than one system call writes.
    pub fn first(&self) -> impl Iterator<Item = (u64, Arc<Vec<u8>>)> + '_ {
        self.groups.iter().take(256).cloned()
    }

    pub fn remove(&mut self, order: u64) {
        if let Some((_, group)) = self.place_of(order).ok().and_then(|at| self.groups.remove(at)) {
            self.bytes -= group.len();
        }
    }

    /// Forgets all groups that are not `wanted`. Returns the number of forgotten groups.
    pub fn retain(&mut self, wanted: impl Fn(u64) -> bool) -> usize {
        let before = self.groups.len();
        self.groups.retain(|&(order, _)| wanted(order));
        self.bytes = self.groups.iter().map(|(_, group)| group.len()).sum();
        before - self.groups.len()
    }
}

/// An upper bound for the total size of the groups that a writer has collected, but not written yet. A writer collects at most
/// one batch of groups, plus one group of less than 4 GiB.
const COLLECTED_MOST: u64 = 1 << 33;

/// The file, the positions of its groups, and the backlog.
#[derive(Debug, Default)]
pub struct Contents {
    pub own: OwnedFile,
    /// A mapping of the file, through which a forked child reads the groups.
    view: Option<View>,
    pub places: Places,
    pub backlog: Backlog,
    /// The position that the next group gets in the order of all groups.
    pub next: u64,
    /// In a forked child: the contents of the parent's jitdump, which has all groups whose position is below `first`. `None`
    /// once the child's file has the groups of all live code.
    parent: Option<Box<Contents>>,
    first: u64,
}

impl Contents {
    /// Describes a file that has no groups yet. `next` is the position that the first group will get.
    pub fn new(own: OwnedFile, next: u64) -> Contents {
        Contents { own, next, ..Contents::default() }
    }

    /// In a forked child that has written no group yet: takes over the contents of the parent's jitdump, to read groups from
    /// it.
    pub fn inherit(&mut self, parent: Contents) {
        // The registry may refer to groups that the parent had collected, but not written, when it forked. The positions of
        // these groups are at least `parent.next`.
        self.next = parent.next + COLLECTED_MOST;
        self.first = self.next;
        self.parent = Some(Box::new(parent));
    }

    pub fn forget_parent(&mut self) {
        self.parent = None;
    }

    /// Counts the ancestors whose jitdumps this process still reads.
    pub fn ancestors(&self) -> usize {
        std::iter::successors(self.parent.as_deref(), |parent| parent.parent.as_deref()).count()
    }

    /// Whether an ancestor of this process has written the group, or was about to write the group when it forked.
    pub fn is_inherited(&self, stored: Stored) -> bool {
        stored.offset < self.first
    }

    /// Returns the `Contents` of the process that has written the group, or is about to write the group: this process or an
    /// ancestor. `None` if this process no longer reads that ancestor's jitdump.
    fn owner(&self, order: u64) -> Option<&Contents> {
        std::iter::successors(Some(self), |contents| contents.parent.as_deref())
            .find(|contents| order >= contents.first)
    }

    /// Whether the group has been collected, but is not completely written yet. For an inherited group, the result is the state
    /// at the time when the ancestor forked.
    pub fn is_underway(&self, stored: Stored) -> bool {
        self.owner(stored.offset).is_some_and(|contents| stored.offset >= contents.next)
    }

    /// Reads the first `bytes.len()` bytes of a group, from the backlog or the file.
    pub fn read(&self, order: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.owner(order).ok_or(io::ErrorKind::NotFound)?.read_own(order, bytes)
    }

    fn read_own(&self, order: u64, bytes: &mut [u8]) -> io::Result<()> {
        if let Some(group) = self.backlog.get(order) {
            bytes.copy_from_slice(group.get(..bytes.len()).ok_or(io::ErrorKind::InvalidData)?);
            return Ok(());
        }
        let offset = self.places.get(order).ok_or(io::ErrorKind::NotFound)?;
        match (self.own.held()?.checked(), &self.view) {
            (Ok(file), _) => file.read_exact_at(bytes, offset),
            (Err(_), Some(view)) => view.read(bytes, offset),
            (Err(error), None) => Err(error),
        }
    }

    /// Reads a whole group except its code bytes.
    pub fn group(&self, stored: Stored) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(stored.len)?;
        bytes.resize(stored.len, 0);
        self.read(stored.offset, &mut bytes)?;
        Ok(bytes)
    }

    pub fn hold(&mut self, file: File) -> io::Result<()> {
        self.view = None;
        self.own.hold(file).map(drop)
    }

    pub fn close(&mut self) {
        (self.view, self.parent) = (None, None);
        self.own.close();
    }

    /// Makes the mapping cover the file's new length, so that forked children can read all groups. If address space is limited
    /// or short, there is no mapping, and a child builds its groups from the registry's data.
    pub fn show(&mut self, len: u64) {
        if !self.view.as_ref().is_some_and(|view| view.covers(len)) {
            self.view = self.own.held().and_then(|file| View::new(file, len)).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_wherever_they_were_written() {
        let mut places = Places::default();
        places.set(40, 10, 40);
        places.set(50, 20, 50);
        assert_eq!(
            (places.get(40), places.get(55), places.get(69), places.get(70)),
            (Some(40), Some(55), Some(69), None)
        );
        assert_eq!(places.0.len(), 2);
        // The groups at the positions 70 to 99 are lost. The groups at the positions 100 to 129 are written late, directly
        // before the group at position 130.
        places.set(100, 10, 70);
        places.set(110, 20, 80);
        places.set(130, 5, 100);
        let all =
            [(69, Some(69)), (70, None), (99, None), (100, Some(70)), (110, Some(80)), (134, Some(104)), (135, None)];
        for (order, place) in all {
            assert_eq!(places.get(order), place, "{order}");
        }
        assert_eq!(places.0.len(), 4);
        // The lost groups at the positions 80 to 84 are written after all other groups.
        places.set(80, 5, 105);
        assert_eq!(
            (places.get(79), places.get(82), places.get(85), places.get(100)),
            (None, Some(107), None, Some(70))
        );
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut backlog = Backlog::new(100);
        assert!(backlog.add(1, 60, &[&[1; 50], &[2; 10]]) && !backlog.add(61, 60, &[&[3; 60]]));
        assert!(backlog.add(121, 40, &[&[4; 40]]) && backlog.is_tight());
        assert_eq!(backlog.get(1).map(|group| (group[49], group[50])), Some((1, 2)));
        assert_eq!(backlog.retain(|order| order == 121), 1);
        assert_eq!((backlog.bytes(), backlog.first().count(), backlog.get(1)), (40, 1, None));
        backlog.remove(121);
        assert!(backlog.is_empty() && backlog.bytes() == 0);
    }

    #[test]
    fn a_child_reads_the_groups_of_its_ancestors() {
        let with = |order, bytes: &[u8; 4]| {
            let mut contents = Contents { backlog: Backlog::new(100), next: order, ..Contents::default() };
            assert!(contents.backlog.add(order, 4, &[bytes]));
            contents.next += 4;
            contents
        };
        let stored = |offset| Stored { offset, len: 4 };
        let (mut child, mut grandchild) = (Contents::default(), Contents::default());
        child.inherit(with(64, b"1111"));
        let first_of_child = child.next;
        child.backlog = with(first_of_child, b"2222").backlog;
        child.next += 4;
        grandchild.inherit(child);
        assert_eq!(grandchild.ancestors(), 2);
        for (order, bytes) in [(64, b"1111"), (first_of_child, b"2222")] {
            assert!(grandchild.is_inherited(stored(order)) && !grandchild.is_underway(stored(order)));
            assert_eq!(grandchild.group(stored(order)).unwrap(), bytes);
        }
        // The grandparent was about to write the group at position 68 when it forked. The grandchild is about to write its own
        // group.
        assert!(grandchild.is_inherited(stored(68)) && grandchild.is_underway(stored(68)));
        let own = stored(grandchild.next);
        assert!(!grandchild.is_inherited(own) && grandchild.is_underway(own));
        grandchild.forget_parent();
        assert_eq!(grandchild.ancestors(), 0);
        assert!(grandchild.group(stored(64)).is_err() && !grandchild.is_underway(stored(68)));
    }
}
