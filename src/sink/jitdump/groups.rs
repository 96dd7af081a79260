//! Collects groups for the jitdump, so that few system calls write many groups. Most groups are written directly from their
//! chunks.

use crate::queue::chunk::Chunk;

/// The collected groups are written as soon as one of these numbers of pieces, bytes or groups is reached.
const BATCH_PIECES: usize = 512;
const BATCH_BYTES: usize = 1 << 20;
const BATCH_GROUPS: usize = 4096;

/// Zero bytes to write in place of missing code bytes. A short buffer is enough, because code bytes are rarely missing.
static ZEROS: [u8; 2048] = [0; 2048];

/// The groups that were collected since the last write.
#[derive(Debug, Default)]
pub struct Groups {
    pieces: Vec<Piece>,
    lens: Vec<usize>,
    bytes: usize,
}

#[derive(Debug)]
enum Piece {
    /// A part of the record bodies in a chunk: the chunk, the offset of the part, and its length.
    InChunk(Chunk, usize, usize),
    Owned(Vec<u8>),
    /// This many zero bytes, at most the length of `ZEROS`.
    Zeros(usize),
}

impl Groups {
    /// Begins a group with `len` bytes of a record, at the offset `at` in `chunk`. The chunk must not be recycled before the
    /// groups are written.
    pub fn push(&mut self, chunk: Chunk, at: usize, len: usize) {
        self.lens.push(len);
        self.bytes += len;
        self.add_piece(chunk, at, len);
    }

    #[inline(always)]
    fn add_piece(&mut self, chunk: Chunk, at: usize, len: usize) {
        match self.pieces.last_mut() {
            Some(Piece::InChunk(same, start, before)) if *same == chunk && *start + *before == at => *before += len,
            _ => self.pieces.push(Piece::InChunk(chunk, at, len)),
        }
    }

    /// Begins a group whose bytes are not in a chunk.
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

    /// Adds code bytes to the last group. If `code` has fewer than `size` bytes, adds zeros for the missing bytes.
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

    /// Whether the collected groups should be written now.
    pub fn are_many(&self) -> bool {
        self.pieces.len() >= BATCH_PIECES || self.bytes >= BATCH_BYTES || self.lens.len() >= BATCH_GROUPS
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Passes the pieces of all groups and the length of each group to `write`, and forgets the groups.
    pub fn write(&mut self, write: impl FnOnce(&[&[u8]], &[usize])) {
        let bytes = |piece| match piece {
            // SAFETY: the bytes are bodies of committed records, to which nobody writes any longer. The chunk with these bodies
            // is recycled only after this call.
            &Piece::InChunk(chunk, at, len) => unsafe { chunk.bodies(at, len) },
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
    }
}
