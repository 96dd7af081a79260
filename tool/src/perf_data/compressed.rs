//! Decompresses the events of `perf record -z`.
//!
//! The compressed data of all events of a recording is one frame of zstd, which perf does not end. After each event, all
//! content so far is decodable. The decoder returns content only when a further window of content follows, because later
//! content may refer to the window.
//!
//! So the content of an event is returned late. But its length must be known at once, because other events may follow. The
//! decoder reports how many bytes it has beyond a window. So a window of zero bytes is decoded before the content. Then the
//! number that the decoder reports is the length of the content.

use std::io;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{invalid, u16_at};

const MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";
/// The maximum size of a block, in bytes.
const BLOCK: u64 = 128 << 10;
/// The maximum number of decoded bytes: `RATIO_MOST` for each compressed byte, plus `DECODED_MORE`.
const RATIO_MOST: u64 = 1000;
const DECODED_MORE: u64 = 256 << 20;
/// A last block without content.
const LAST: &[u8] = &[1, 0, 0];
/// Decoded bytes that were taken are removed when their number reaches this limit.
const KEPT: usize = 1 << 20;

#[derive(Default)]
pub struct Inflater {
    decoder: FrameDecoder,
    /// The window of the frame, if one has begun.
    window: Option<u64>,
    has_checksum: bool,
    /// Compressed bytes that are not a whole block yet.
    pending: Vec<u8>,
    /// How many zero bytes of the window before the content the decoder has not returned yet.
    zeros: u64,
    /// How many bytes of this frame the decoder has returned.
    returned: u64,
    /// How many bytes of content of this frame all `add` calls have reported.
    reported: u64,
    content: Vec<u8>,
    /// How many bytes of `content` were taken.
    taken: usize,
    /// How many bytes were decoded (including windows), and from how many compressed bytes.
    decoded: u64,
    added: u64,
}

/// The length and the window of a frame's header. `None` if the header is incomplete.
fn frame_header(bytes: &[u8]) -> io::Result<Option<(usize, u64, bool)>> {
    let Some((magic, rest)) = bytes.split_at_checked(4) else { return Ok(None) };
    if magic != MAGIC {
        return invalid("has compressed events that are not of zstd");
    }
    let Some((&flags, rest)) = rest.split_first() else { return Ok(None) };
    let is_single = flags & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
    let size = match flags >> 6 {
        0 => usize::from(is_single),
        number => 1 << number,
    };
    let before = usize::from(!is_single) + dictionary;
    let Some(fields) = rest.get(..before + size) else { return Ok(None) };
    let window = if is_single {
        let mut number = [0; 8];
        number[..size].copy_from_slice(&fields[before..]);
        // A number of two bytes counts from 256.
        u64::from_le_bytes(number).saturating_add(if size == 2 { 256 } else { 0 })
    } else {
        let base = 1 << (10 + (fields[0] >> 3));
        base + base / 8 * u64::from(fields[0] & 7)
    };
    Ok(Some((5 + fields.len(), window, flags & 4 != 0)))
}

/// The size of the block that begins here, including its header and a checksum after it. `None` if the block is incomplete.
fn block(bytes: &[u8], has_checksum: bool) -> Option<usize> {
    let header = bytes.get(..3)?;
    let header = u32::from(header[0]) | u32::from(header[1]) << 8 | u32::from(header[2]) << 16;
    let (is_last, is_repeated, size) = (header & 1 != 0, header >> 1 & 3 == 1, header as usize >> 3);
    let len = 3 + if is_repeated { 1 } else { size } + if is_last && has_checksum { 4 } else { 0 };
    (len <= bytes.len()).then_some(len)
}

fn broken<T>(result: Result<T, impl std::fmt::Display>) -> io::Result<T> {
    result.or_else(|error| invalid(&format!("has compressed events that are broken: {error}")))
}

impl Inflater {
    /// Adds compressed bytes, and returns by how many bytes the content has grown.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<u64> {
        self.pending.extend_from_slice(bytes);
        self.added += bytes.len() as u64;
        let pending = std::mem::take(&mut self.pending);
        let (mut rest, mut grown) = (&pending[..], 0);
        loop {
            let len = match self.window {
                None => self.begin(rest)?,
                Some(_) => match block(rest, self.has_checksum) {
                    Some(len) => {
                        broken(self.decoder.decode_blocks(&rest[..len], BlockDecodingStrategy::UptoBlocks(1)))?;
                        grown += self.collect()?;
                        self.count(BLOCK.min(grown))?;
                        len
                    }
                    None => 0,
                },
            };
            rest = &rest[len..];
            if len == 0 {
                break;
            }
        }
        self.pending = rest.to_vec();
        Ok(grown)
    }

    /// Begins a frame, and returns the length of its header.
    fn begin(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((len, window, has_checksum)) = frame_header(bytes)? else { return Ok(0) };
        broken(self.decoder.init(&bytes[..len]))?;
        (self.window, self.has_checksum) = (Some(window), has_checksum);
        (self.zeros, self.returned, self.reported) = (window, 0, 0);
        self.count(window)?;
        let mut left = window;
        while left > 0 {
            let size = left.min(BLOCK);
            let header = (size as u32) << 3 | 1 << 1;
            let [first, second, third, _] = header.to_le_bytes();
            let zeros = [first, second, third, 0];
            broken(self.decoder.decode_blocks(&zeros[..], BlockDecodingStrategy::UptoBlocks(1)))?;
            left -= size;
        }
        Ok(len)
    }

    /// Counts decoded bytes. Fails if a small file would cause unlimited work, or fill the disk.
    fn count(&mut self, decoded: u64) -> io::Result<()> {
        self.decoded = self.decoded.saturating_add(decoded);
        if self.decoded > self.added.saturating_mul(RATIO_MOST).saturating_add(DECODED_MORE) {
            return invalid("has compressed events that are far too large");
        }
        Ok(())
    }

    /// Takes decoded bytes from the decoder. Returns by how many bytes the content has grown.
    fn collect(&mut self) -> io::Result<u64> {
        let window = self.window.unwrap_or(0);
        let is_finished = self.decoder.is_finished();
        let bytes = self.decoder.collect().unwrap_or_default();
        self.returned += bytes.len() as u64;
        let skipped = self.zeros.min(bytes.len() as u64);
        self.zeros -= skipped;
        if self.taken >= KEPT {
            self.content.drain(..self.taken);
            self.taken = 0;
        }
        self.content.extend_from_slice(&bytes[skipped as usize..]);
        let all = if is_finished { self.returned.saturating_sub(window) } else { self.returned };
        let grown = all.saturating_sub(self.reported);
        self.reported = all;
        if is_finished {
            self.window = None;
        }
        Ok(grown)
    }

    /// Must be called when no compressed bytes follow. Afterwards all content can be taken.
    pub fn finish(&mut self) -> io::Result<()> {
        if !self.pending.is_empty() {
            return invalid("has compressed events that are not whole");
        }
        if self.window.is_some() {
            let end = if self.has_checksum { [LAST, &[0; 4]].concat() } else { LAST.to_vec() };
            self.add(&end)?;
        }
        Ok(())
    }

    fn rest(&self) -> &[u8] {
        &self.content[self.taken..]
    }

    /// Whether fewer bytes are decoded than may be taken.
    pub fn is_behind(&self, allowed: u64) -> bool {
        (self.rest().len() as u64) < allowed
    }

    /// Moves the next event into `event`, if its bytes are among the next `allowed` bytes. Returns its length.
    pub fn take_event(&mut self, allowed: u64, event: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let most = usize::try_from(allowed).unwrap_or(usize::MAX).min(self.rest().len());
        let rest = &self.rest()[..most];
        if rest.len() < 8 {
            return Ok(None);
        }
        let size = usize::from(u16_at(rest, 6));
        if size < 8 {
            return invalid("has a compressed event without a size");
        }
        let Some(bytes) = rest.get(..size) else { return Ok(None) };
        event.clear();
        event.extend_from_slice(bytes);
        self.taken += size;
        Ok(Some(size as u64))
    }
}
