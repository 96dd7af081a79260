//! Groups on their way to the jitdump in few system calls. Most lie in chunks.

use std::ops::Range;

use crate::queue::chunk::Chunk;

/// Pieces and bytes that may come together before they are written.
const BATCH_PIECES: usize = 512;
const BATCH_BYTES: usize = 1 << 20;
const BATCH_GROUPS: usize = 4096;

/// Most code bytes that are not in a record are there in whole.
static ZEROS: [u8; 2048] = [0; 2048];

/// See the module's description.
#[derive(Debug, Default)]
pub struct Groups {
    pieces: Vec<Piece>,
    /// How long each group is.
    lens: Vec<usize>,
    bytes: usize,
    /// The bytes of groups that `push_made` has begun.
    made: Vec<u8>,
}

#[derive(Debug)]
enum Piece {
    /// So many bytes of bodies in a chunk, from a place on.
    InChunk(Chunk, usize, usize),
    /// A part of `made`.
    Made(Range<usize>),
    Owned(Vec<u8>),
    /// At most as many as there are in `ZEROS`.
    Zeros(usize),
}

impl Groups {
    /// Begins a group that is part of a record: `len` bytes from `at` on. Its chunk is not recycled before the groups are written.
    pub fn push(&mut self, chunk: Chunk, at: usize, len: usize) {
        self.lens.push(0);
        self.add_in_chunk(chunk, at, len);
    }

    /// Adds to the last group what is part of a record.
    pub fn add_in_chunk(&mut self, chunk: Chunk, at: usize, len: usize) {
        self.grow(len);
        match self.pieces.last_mut() {
            Some(Piece::InChunk(same, start, before)) if *same == chunk && *start + *before == at => *before += len,
            _ => self.pieces.push(Piece::InChunk(chunk, at, len)),
        }
    }

    /// Begins a group with the bytes that `make` appends, and returns their number and what `make` has returned. If that is `None`, no
    /// group is begun.
    pub fn push_made<T>(&mut self, make: impl FnOnce(&mut Vec<u8>) -> Option<T>) -> Option<(usize, T)> {
        let start = self.made.len();
        let said = make(&mut self.made)?;
        let made = start..self.made.len();
        let len = made.len();
        self.lens.push(0);
        self.grow(len);
        self.pieces.push(Piece::Made(made));
        Some((len, said))
    }

    /// Begins a group that lies in no chunk.
    pub fn push_owned(&mut self, group: Vec<u8>) {
        self.lens.push(0);
        let len = group.len();
        self.add(group, len);
    }

    fn grow(&mut self, by: usize) {
        if let Some(len) = self.lens.last_mut() {
            *len += by;
        }
        self.bytes += by;
    }

    /// Adds code bytes to the last group, with zeros for those that are missing of `size`.
    pub fn add(&mut self, code: Vec<u8>, size: usize) {
        self.grow(size);
        let mut missing = size - code.len();
        self.pieces.push(Piece::Owned(code));
        while missing > 0 {
            let zeros = missing.min(ZEROS.len());
            self.pieces.push(Piece::Zeros(zeros));
            missing -= zeros;
        }
    }

    /// Whether it is time to write them.
    pub fn are_many(&self) -> bool {
        self.pieces.len() >= BATCH_PIECES || self.bytes >= BATCH_BYTES || self.lens.len() >= BATCH_GROUPS
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hands all of them to `write`, with their lengths, and forgets them.
    pub fn write(&mut self, write: impl FnOnce(&[&[u8]], &[usize])) {
        let bytes = |piece| match piece {
            // SAFETY: these are committed bodies in a chunk that is recycled later, and nobody writes to them any more.
            &Piece::InChunk(chunk, at, len) => unsafe { chunk.bodies(at, len) },
            Piece::Made(range) => &self.made[range.clone()],
            Piece::Owned(bytes) => &bytes[..],
            &Piece::Zeros(len) => &ZEROS[..len],
        };
        let pieces: Vec<&[u8]> = self.pieces.iter().map(bytes).collect();
        if !pieces.is_empty() {
            write(&pieces, &self.lens);
        }
        drop(pieces);
        self.pieces.clear();
        self.lens.clear();
        self.bytes = 0;
        self.made.clear();
    }
}
