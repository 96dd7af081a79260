//! Groups on their way to the jitdump in few system calls. Most lie in chunks.

use crate::queue::chunk::Chunk;
use crate::queue::record::Event;

/// Pieces and bytes that may come together before they are written.
const BATCH_PIECES: usize = 512;
const BATCH_BYTES: usize = 1 << 20;
const BATCH_GROUPS: usize = 4096;

/// See the module's description.
#[derive(Default)]
pub struct Groups {
    pieces: Vec<*const [u8]>,
    /// Pieces that lie in no chunk.
    owned: Vec<Vec<u8>>,
    /// How long each group is.
    lens: Vec<usize>,
    bytes: usize,
}

impl Groups {
    /// Adds the group that is the body of this event, or as much of it as is in the body. The chunk is not recycled before the
    /// groups are written.
    pub fn push(&mut self, chunk: Chunk, event: &Event, len: usize) {
        let group = std::ptr::slice_from_raw_parts(chunk.body_ptr(event).cast::<u8>(), len);
        self.lens.push(len);
        self.bytes += len;
        if let Some(last) = self.pieces.last_mut() {
            // A chunk begins with its head, never where a body of another one ends: both lie in the same chunk.
            if last.cast::<u8>().wrapping_add(last.len()) == group.cast() {
                *last = std::ptr::slice_from_raw_parts(last.cast(), last.len() + len);
                return;
            }
        }
        self.pieces.push(group);
    }

    /// Adds a group that lies in no chunk, without its code bytes.
    pub fn push_made(&mut self, group: Vec<u8>) {
        self.lens.push(0);
        let len = group.len();
        self.push_owned(group, len);
    }

    /// Adds the code bytes of the last group, with zeros for those that are missing.
    pub fn push_owned(&mut self, code: Vec<u8>, size: usize) {
        if let Some(len) = self.lens.last_mut() {
            *len += size;
        }
        self.bytes += size;
        self.pieces.push(&raw const code[..]);
        self.pieces.extend(zeros(size - code.len()).map(|piece| &raw const *piece));
        self.owned.push(code);
    }

    /// Whether it is time to write them.
    pub fn are_many(&self) -> bool {
        self.pieces.len() >= BATCH_PIECES || self.bytes >= BATCH_BYTES || self.lens.len() >= BATCH_GROUPS
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hands all of them to `write`, with their lengths, and forgets them.
    pub fn drain(&mut self, write: impl FnOnce(&[&[u8]], &[usize])) {
        if self.pieces.is_empty() {
            return;
        }
        // SAFETY: the pieces are committed bodies in chunks that are recycled later, and nobody writes to them any more; or
        // they are owned until the end of this function.
        let pieces: Vec<&[u8]> = self.pieces.iter().map(|&piece| unsafe { &*piece }).collect();
        write(&pieces, &self.lens);
        drop(pieces);
        self.pieces.clear();
        self.owned.clear();
        self.lens.clear();
        self.bytes = 0;
    }
}

/// That many zeros, in pieces.
pub fn zeros(mut len: usize) -> impl Iterator<Item = &'static [u8]> {
    static ZEROS: [u8; 2048] = [0; 2048];
    std::iter::from_fn(move || {
        let piece = &ZEROS[..len.min(ZEROS.len())];
        len -= piece.len();
        (!piece.is_empty()).then_some(piece)
    })
}
