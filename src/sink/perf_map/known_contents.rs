//! How the sink recognizes its own text in a map that others may write to, and how often it rewrites a map.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The minimal time between two rewrites, unless somebody asks for a flush.
pub const REWRITE_INTERVAL: Duration = Duration::from_millis(50);
/// After a rewrite, the next rewrite waits at least this many times as long as the last one took, unless somebody asks for a
/// flush.
pub const REWRITE_SHARE: u32 = 20;

/// The number of bytes that are remembered of the beginning of the file. The same number is remembered of the end of the last
/// text.
const MARK: usize = 64;

/// Parts of the text that the sink has written. If the file no longer has them, another writer has opened the file as if it
/// were new.
#[derive(Debug, Default)]
pub struct Marks {
    /// The beginning of the file, if this sink wrote it.
    head: Vec<u8>,
    /// The end of the text that this sink wrote last.
    tail: Vec<u8>,
    tail_end: u64,
}

impl Marks {
    /// Notes that this text has been written, and ends at the offset `end`.
    pub fn note(&mut self, text: &[u8], end: u64) {
        if end == text.len() as u64 {
            self.head.clear();
            self.head.extend_from_slice(&text[..text.len().min(MARK)]);
        }
        self.tail.clear();
        self.tail.extend_from_slice(&text[text.len().saturating_sub(MARK)..]);
        self.tail_end = end;
    }

    pub fn begin(&self, file: &File) -> bool {
        holds(file, 0, &self.head)
    }

    pub fn end(&self, file: &File) -> bool {
        holds(file, self.tail_end - self.tail.len() as u64, &self.tail)
    }
}

pub fn holds(file: &File, offset: u64, bytes: &[u8]) -> bool {
    let mut found = [0; MARK];
    let found = &mut found[..bytes.len()];
    file.read_exact_at(found, offset).is_ok() && found == bytes
}
