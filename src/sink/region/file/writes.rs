//! Writes bytes at given offsets of a file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::sys::file::Held;

/// How many bytes `copy` copies at a time.
const COPY: usize = 128 << 10;

#[cfg(test)]
type Hook = Box<dyn FnMut(&File, u64, &[u8]) -> io::Result<()> + Send>;

pub struct Disk {
    pub(super) file: Arc<Held>,
    /// The number of bytes that were written since the last call of `RegionFile::take_written`.
    pub written: u64,
    /// A function that is called before each write. If the function fails, the write fails.
    #[cfg(test)]
    pub before_write: Option<Hook>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl Disk {
    pub fn new(file: Arc<Held>) -> io::Result<Disk> {
        crate::sys::file::allow_any_place(&file)?;
        Ok(Disk {
            file,
            written: 0,
            #[cfg(test)]
            before_write: None,
        })
    }

    /// Fails if somebody has closed the file. Callers check once before several writes.
    pub fn check(&self) -> io::Result<()> {
        self.file.checked().map(drop)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Some(hook) = &mut self.before_write {
            hook(&self.file, at, bytes)?;
        }
        self.file.write_all_at(bytes, at)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Writes pieces that lie near each other by a single write. The file keeps the bytes between the pieces. If pieces
    /// overlap, the last piece counts.
    pub fn write_pieces<'a>(
        &mut self,
        range: Range<u64>,
        mut pieces: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> io::Result<()> {
        let mut block = Vec::new();
        block.try_reserve_exact((range.end - range.start) as usize)?;
        block.resize((range.end - range.start) as usize, 0);
        // If the first piece fills the range, no bytes lie between pieces, so no bytes are read.
        let mut first = pieces.next();
        if first.is_none_or(|(_, bytes)| bytes.len() < block.len()) {
            self.file.read_exact_at(&mut block, range.start)?;
        }
        while let Some((at, bytes)) = first {
            let at = (at - range.start) as usize;
            block[at..at + bytes.len()].copy_from_slice(bytes);
            first = pieces.next();
        }
        self.write(range.start, &block)
    }

    /// Copies a part of another file, or of this file if `from` is `None`.
    pub fn copy(&mut self, from: Option<&Disk>, from_at: u64, to_at: u64, len: u64) -> io::Result<()> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(len.min(COPY as u64) as usize)?;
        buffer.resize(len.min(COPY as u64) as usize, 0);
        let mut done = 0;
        while done < len {
            let piece = &mut buffer[..(len - done).min(COPY as u64) as usize];
            from.map_or(&**self.file, Disk::file).read_exact_at(piece, from_at + done)?;
            self.write(to_at + done, piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }
}
