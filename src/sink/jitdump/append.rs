//! Appends groups to the jitdump: new groups, and groups that could not be written earlier.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Jitdump;
use crate::api::options::Sinks;
use crate::format::jitdump::HEADER_SIZE;
use crate::sink::retry::Retry;
use crate::sink::{stall, Sink};
use crate::sys::file;

/// If a file is longer than `RESERVE_FROM`, disk space after its end is allocated in advance: as many bytes as the file has,
/// but at most `RESERVE_MOST`.
const RESERVE_FROM: u64 = 1 << 20;
const RESERVE_MOST: u64 = 16 << 20;

impl Jitdump {
    /// Makes the file ready for a write. Reopens the file if the host has closed the descriptor. Sets `spoiled` and fails if
    /// somebody has truncated or overwritten the file.
    pub(super) fn usable(&mut self) -> io::Result<()> {
        let len = self.contents.own.held()?.checked_len().map(|(_, len)| len);
        let len = len.or_else(|_| self.contents.own.reopen())?;
        let file = self.contents.own.held()?;
        // Another runtime may mistake the file for its own, truncate the file to length 0, and write its own header. So the
        // header is checked if the length of the file has changed, or if the file has only a header.
        let may_differ = len != self.len || len == HEADER_SIZE as u64;
        if self.torn {
            file.set_len(self.len)?;
            self.torn = false;
        } else if len < self.len || may_differ && !self.is_ours(file) {
            self.spoiled = true;
        } else {
            // If the file is longer than before, other writers have appended records, which are assumed to be whole.
            self.len = len;
        }
        if self.spoiled {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "has been cut or overwritten by somebody else"));
        }
        Ok(())
    }

    pub fn flush(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        groups.write(|pieces, lens| self.put(pieces, lens));
        self.groups = groups;
    }

    /// Appends whole groups. Groups that cannot be written join the backlog, or count as lost if the backlog has no room.
    pub(super) fn put(&mut self, pieces: &[&[u8]], lens: &[usize]) {
        let (mut groups, mut size, mut lost) = (0, 0, 0);
        if self.contents.own.trouble.is_none() {
            let status = self.status.clone();
            let result = status.write_gate.pass(|| self.append(pieces, lens, &mut groups));
            size = lens[..groups].iter().sum();
            if size > 0 {
                self.contents.places.set(self.contents.next, size as u64, self.len - size as u64);
            }
            if let Err(error) = result {
                self.contents.own.trouble = Some(if self.spoiled { Retry::at_once() } else { Retry::after(None) });
                stall(&status, Sinks::JITDUMP, self.path(), &error);
            }
        }
        let written = size as u64;
        self.contents.next += written;
        for &len in &lens[groups..] {
            let kept = self.contents.backlog.add(self.contents.next, len, &part(pieces, size, len));
            lost += u64::from(!kept);
            size += len;
            self.contents.next += len as u64;
        }
        self.lost += lost;
        self.count(groups as u64, written, lost);
    }

    /// Updates the counters. `groups` is the number of groups that were written, and `bytes` is their total size. `lost` is the
    /// number of groups that are neither in the file nor in the backlog.
    pub(super) fn count(&self, groups: u64, bytes: u64, lost: u64) {
        let counters = &self.status.counters;
        counters.jitdump_records.add(groups);
        counters.jitdump_bytes.add(bytes);
        counters.jitdump_lost.add(lost);
        counters.jitdump_held.set(self.contents.backlog.bytes() as u64);
    }

    /// Appends as many whole groups as possible, and counts the appended groups in `groups`, even on failure. `groups` must be
    /// 0 before the call.
    fn append(&mut self, pieces: &[&[u8]], lens: &[usize], groups: &mut usize) -> io::Result<()> {
        self.usable()?;
        let (mut allowed, mut size) = (0, 0);
        while allowed < lens.len() && self.len + (size + lens[allowed]) as u64 <= self.most {
            size += lens[allowed];
            allowed += 1;
        }
        let file = self.contents.own.held()?;
        let kept = part(pieces, 0, size);
        let mut slices: Vec<IoSlice<'_>> = kept.iter().map(|piece| IoSlice::new(piece)).collect();
        let (written, mut result) = self.status.aside(|| file::append(file, &mut slices));
        let mut whole = 0;
        while *groups < allowed && whole + lens[*groups] as u64 <= written {
            whole += lens[*groups] as u64;
            *groups += 1;
        }
        self.len += whole;
        if whole < written {
            // Readers would lose all records after a partial group, so the partial group is cut off.
            self.torn = file.set_len(self.len).is_err();
        }
        if result.is_ok() && allowed < lens.len() {
            self.spoiled = true;
            result = Err(io::Error::new(io::ErrorKind::StorageFull, "is as long as it may be"));
        }
        if self.len > self.reserved && self.len > RESERVE_FROM && result.is_ok() {
            let more = self.len.min(RESERVE_MOST).min(self.most - self.len);
            if file::gains_by_reserve(file) {
                file::reserve(file, self.len, more);
            }
            self.reserved = self.len + more;
        }
        self.contents.show(self.len);
        result
    }

    /// Writes the groups of the backlog. Each group leaves the backlog as soon as it is written, even if a later group cannot
    /// be written.
    pub(super) fn catch_up(&mut self) -> io::Result<()> {
        while !self.contents.backlog.is_empty() {
            // The groups stay in the backlog during the write, so that a child that is forked meanwhile can read them.
            let first: Vec<(u64, Arc<Vec<u8>>)> = self.contents.backlog.first().collect();
            let pieces: Vec<&[u8]> = first.iter().map(|(_, group)| group.as_slice()).collect();
            let lens: Vec<usize> = pieces.iter().map(|group| group.len()).collect();
            let (mut groups, mut offset) = (0, self.len);
            let result = self.append(&pieces, &lens, &mut groups);
            let size = lens[..groups].iter().sum::<usize>() as u64;
            // If somebody else has appended bytes to the file meanwhile, the groups lie after the appended bytes.
            offset = offset.max(self.len - size);
            for (order, group) in &first[..groups] {
                self.contents.places.set(*order, group.len() as u64, offset);
                offset += group.len() as u64;
                self.contents.backlog.remove(*order);
            }
            self.count(groups as u64, size, 0);
            result?;
        }
        self.usable()
    }

    /// Appends one group during a repair. On failure, returns the error, whereas `put` adds the group to the backlog.
    pub(super) fn put_again(&mut self, group: &[u8]) -> io::Result<()> {
        let len = group.len() as u64;
        self.append(&[group], &[group.len()], &mut 0)?;
        self.contents.places.set(self.contents.next, len, self.len - len);
        self.contents.next += len;
        self.count(1, len, 0);
        Ok(())
    }

    /// Frees the disk space that was allocated in advance after the end of the file.
    pub fn trim(&mut self) -> io::Result<()> {
        match self.contents.own.held() {
            Ok(file) if self.reserved > self.len => {
                self.reserved = 0;
                let (file, len) = file.checked_len()?;
                file.set_len(len)
            }
            _ => Ok(()),
        }
    }
}

/// The bytes from `skip` to `skip + len` of the concatenated pieces.
fn part<'a>(pieces: &[&'a [u8]], mut skip: usize, mut len: usize) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    for piece in pieces {
        let skipped = skip.min(piece.len());
        let piece = &piece[skipped..];
        skip -= skipped;
        let piece = &piece[..len.min(piece.len())];
        len -= piece.len();
        if !piece.is_empty() {
            parts.push(piece);
        }
        if len == 0 {
            break;
        }
    }
    parts
}
