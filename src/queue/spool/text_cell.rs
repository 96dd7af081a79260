//! Text that one process stores and another process reads, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Text without zero bytes. Each word holds eight bytes of the text.
#[derive(Debug)]
#[repr(C)]
pub struct TextCell<const WORDS: usize> {
    len: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> TextCell<WORDS> {
    pub fn set(&self, text: &[u8]) {
        self.len.store(text.len() as u64, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(text.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
    }

    /// The text; `None` if the cell has an invalid length or a zero byte.
    pub fn get(&self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.len.load(Ordering::Relaxed)).ok().filter(|&len| len <= 8 * WORDS)?;
        let mut text: Vec<u8> = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        text.truncate(len);
        (!text.contains(&0)).then_some(text)
    }
}
