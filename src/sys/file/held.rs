//! Keeps descriptors open for a long time, although the host may close them or reuse their numbers for other files.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::refuse::refuse;
use super::{identity_and_len, look_at, Identity};
use crate::sys::descriptor_table::DescriptorTable;

/// An error of this kind means that a descriptor no longer refers to the file for which it was opened.
pub const CLOSED: io::ErrorKind = io::ErrorKind::NotConnected;

/// A file that is kept open for a long time.
///
/// If the descriptor is in a descriptor table of the library, no other code can close the descriptor. If the descriptor is in
/// the host's table, the host may close it, as daemons do when they close all descriptors. The number of a closed descriptor
/// may refer to another file, or to the same file if the host has opened this file itself. So an open file in the host's table
/// gets a mark, if possible. If the mark is missing later, the descriptor is no longer used, and is not closed. A descriptor in
/// the host's table that could not be marked is never closed, because its number may now belong to the host.
#[derive(Debug)]
pub struct Held {
    file: ManuallyDrop<File>,
    identity: Identity,
    table: DescriptorTable,
    marked: bool,
    /// The unique serial number of this `Held`. For each descriptor number of the host's table, `holder_of` keeps the serial
    /// number of the latest `Held` with this descriptor number.
    serial: u32,
}

impl Held {
    pub fn new(file: File) -> io::Result<Held> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let (identity, table) = (look_at(&file)?, DescriptorTable::current());
        let marked = table.is_host() && mark(&file);
        let serial = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if table.is_host() {
            holder_of(&file).store(serial, Ordering::Relaxed);
        }
        Ok(Held { file: ManuallyDrop::new(file), identity, table, marked, serial })
    }

    /// The identity that the file had when it was opened.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the descriptor certainly still refers to the file that was opened, and may therefore be closed.
    fn is_ours(&self) -> bool {
        match self.table == DescriptorTable::current() {
            true if self.table.is_host() => self.marked && self.checked().is_ok(),
            is_here => is_here,
        }
    }

    /// Returns the file, so that the caller can write to it. Fails with `CLOSED` if the descriptor no longer refers to this
    /// file, or is not in the calling thread's descriptor table.
    pub fn checked(&self) -> io::Result<&File> {
        match self.table == DescriptorTable::current() {
            true if !self.table.is_host() => Ok(&self.file),
            _ => self.checked_len().map(|(file, _)| file),
        }
    }

    /// Returns the file, so that the caller can write to it, and the length of the file. Fails with `CLOSED` in the same
    /// cases as `checked`.
    pub fn checked_len(&self) -> io::Result<(&File, u64)> {
        let is_held = self.table == DescriptorTable::current()
            && (!self.table.is_host()
                || holder_of(&self.file).load(Ordering::Relaxed) == self.serial
                    && (!self.marked || is_marked(&self.file)));
        match identity_and_len(&self.file) {
            Ok((identity, len)) if is_held && identity.is(&self.identity) => Ok((&self.file, len)),
            _ => Err(refuse(CLOSED, "has been closed by somebody else")),
        }
    }
}

/// Gives access to the file, without a check that the descriptor still belongs to the file.
impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the file is dropped only here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Returns the variable that contains the serial number of the last `Held` that got the descriptor number of `file`. The
/// descriptor must be in the host's table. Several `Held`s may get the same descriptor number one after another, if the host
/// closes their descriptors.
fn holder_of(file: &File) -> &'static AtomicU32 {
    static HOLDERS: [AtomicU32; 1 << 12] = [const { AtomicU32::new(0) }; 1 << 12];
    // If two descriptor numbers share an element of `HOLDERS`, the library treats the older descriptor as if the host had
    // closed it. The older descriptor stays open for ever, which does no harm.
    &HOLDERS[file.as_raw_fd() as usize % HOLDERS.len()]
}

/// The mark is the signal that an open file sends when it is ready for input or output (fcntl(2), `F_SETSIG`). The setting
/// has no effect, because nobody requests this signal for the file. The kernel keeps the setting with the open file, and not
/// with the descriptor.
const MARK: libc::c_int = libc::SIGWINCH;

fn mark(file: &File) -> bool {
    // SAFETY: the descriptor is open, and this command takes a number.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, MARK) == 0 }
}

fn is_marked(file: &File) -> bool {
    // SAFETY: the kernel checks whether the descriptor is open.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETSIG) == MARK }
}

/// The numbers of `F_SETSIG` and `F_GETSIG` are from Linux include/uapi/asm-generic/fcntl.h. Some versions of the `libc` crate
/// lack these constants.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
