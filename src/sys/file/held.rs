//! Descriptors that stay open for long, while the host may close them or give their numbers to other files.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::refuse::refuse;
use super::{identity_and_len, look_at, Identity};
use crate::sys::descriptors::DescriptorTable;

/// The kind of error for a descriptor that is no longer that of the file.
pub const CLOSED: io::ErrorKind = io::ErrorKind::NotConnected;

/// A file that is kept open for long.
///
/// In a table of descriptors that is ours alone nobody else can close it. In the host's, which daemons close as a whole, the number
/// may be that of another file later, even of the same one that the host has opened itself. So the opened file is marked there, and
/// without its mark a descriptor is neither used nor closed.
#[derive(Debug)]
pub struct Held {
    file: ManuallyDrop<File>,
    identity: Identity,
    table: DescriptorTable,
    marked: bool,
    /// In the host's table: which of ours has got the descriptor last.
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

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the descriptor is known to be the one that was opened.
    fn is_ours(&self) -> bool {
        match self.table == DescriptorTable::current() {
            true if self.table.is_host() => self.marked && self.checked().is_ok(),
            is_here => is_here,
        }
    }

    /// The file, to be written to.
    pub fn checked(&self) -> io::Result<&File> {
        match self.table == DescriptorTable::current() {
            true if !self.table.is_host() => Ok(&self.file),
            _ => self.checked_len().map(|(file, _)| file),
        }
    }

    /// The file, to be written to, and how long it is.
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

/// The file as it was last checked.
impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: it is no longer used.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// The holder of a descriptor of the host's table: ours may have the number of an earlier one that the host has closed.
fn holder_of(file: &File) -> &'static AtomicU32 {
    static HOLDERS: [AtomicU32; 1 << 12] = [const { AtomicU32::new(0) }; 1 << 12];
    // Of two descriptors that share a place the first one is not closed, which does no harm.
    &HOLDERS[file.as_raw_fd() as usize % HOLDERS.len()]
}

/// The mark: which signal an opened file sends when it is ready, if it is asked to send any (fcntl(2), `F_SETSIG`). It belongs to the
/// opened file and not to its descriptor, and does nothing.
const MARK: libc::c_int = libc::SIGWINCH;

fn mark(file: &File) -> bool {
    // SAFETY: fcntl takes a descriptor, which is open.
    unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, MARK) == 0 }
}

fn is_marked(file: &File) -> bool {
    // SAFETY: whether the descriptor is open is for the kernel to find out.
    unsafe { libc::fcntl(file.as_raw_fd(), F_GETSIG) == MARK }
}

/// Linux include/uapi/asm-generic/fcntl.h; not in every version of the bindings.
const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
