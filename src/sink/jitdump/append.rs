//! Writing groups to the file: new ones at its end, and later those that could not be written at first.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Jitdump;
use crate::api::options::Sinks;
use crate::format::jitdump::HEADER_SIZE;
use crate::sink::retry::Retry;
use crate::sink::{stall, Sink};
use crate::sys::file;

/// A file that grows beyond this gets room ahead: as much as it is long already, up to a bound.
const RESERVE_FROM: u64 = 1 << 20;
const RESERVE_MOST: u64 = 16 << 20;

impl Jitdump {
    /// The file, to be written to; opened again if the host has closed it. Takes note if it has been cut.
    pub(super) fn usable(&mut self) -> io::Result<()> {
        let len = self.contents.own.held()?.checked_len().map(|(_, len)| len);
        let len = len.or_else(|_| self.contents.own.reopen())?;
        let file = self.contents.own.held()?;
        // Another runtime that takes the file for its own cuts it to nothing, and first writes a header.
        let may_differ = len != self.len || len == HEADER_SIZE as u64;
        if self.torn {
            file.set_len(self.len)?;
            self.torn = false;
        } else if len < self.len || may_differ && !self.is_ours(file) {
            self.spoiled = true;
        } else {
            // Somebody else writes to it too. Their records are whole, as far as we know.
            self.len = len;
        }
        if self.spoiled {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "has been cut or overwritten by somebody else"));
        }
        Ok(())
    }

    /// Writes the groups that have come together.
    pub fn flush(&mut self) {
        let mut groups = std::mem::take(&mut self.groups);
        groups.write(|pieces, lens| self.put(pieces, lens));
        self.groups = groups;
    }

    /// Appends groups, in whole. Those that cannot be written wait, or are lost.
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
                stall(&status, Sinks::JITDUMP, self.path(), "write", &error);
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

    /// Counts groups that were written, and those that neither are in the file nor wait.
    pub(super) fn count(&self, groups: u64, bytes: u64, lost: u64) {
        let counters = &self.status.counters;
        counters.jitdump_records.add(groups);
        counters.jitdump_bytes.add(bytes);
        counters.jitdump_lost.add(lost);
        counters.jitdump_held.set(self.contents.backlog.bytes() as u64);
    }

    /// Appends as many groups as there is room for, and reports their number in `groups`.
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
            // Readers would lose the records after half a record.
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

    /// Writes what waits, as far as that can be.
    pub(super) fn catch_up(&mut self) -> io::Result<()> {
        while !self.contents.backlog.is_empty() {
            // They stay where they are while they are written: a child that is forked then finds them there.
            let first: Vec<(u64, Arc<Vec<u8>>)> = self.contents.backlog.first().collect();
            let pieces: Vec<&[u8]> = first.iter().map(|(_, group)| group.as_slice()).collect();
            let lens: Vec<usize> = pieces.iter().map(|group| group.len()).collect();
            let (mut groups, mut offset) = (0, self.len);
            let result = self.append(&pieces, &lens, &mut groups);
            let size = lens[..groups].iter().sum::<usize>() as u64;
            // If another program has written to the file, the groups are after its bytes.
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

    /// Appends a group while the sink is still in trouble, or fails.
    pub(super) fn put_again(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.append(pieces, &[len], &mut 0)?;
        self.contents.places.set(self.contents.next, len as u64, self.len - len as u64);
        self.contents.next += len as u64;
        self.count(1, len as u64, 0);
        Ok(())
    }

    /// Gives the room ahead back.
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

/// The part of the pieces that begins after `skip` bytes.
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
