//! Recognizes the perf map sink's own text in a map that others may write to, and limits how often the map is rewritten.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The minimal time between two rewrites. A flush does not wait.
pub const REWRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Before the next rewrite, the sink also waits at least this many times as long as the last rewrite took. A flush does not
/// wait.
pub const REWRITE_SHARE: u32 = 20;

/// The sink remembers the first `MARK` bytes of the file, and the final `MARK` bytes of the sink's most recent write.
const MARK: usize = 64;

/// The beginning and the end of the text that the sink has written. If the file no longer has these bytes, another writer has
/// opened the file as if the file were new.
#[derive(Debug, Default)]
pub struct Marks {
    /// The first bytes of the file, if this sink wrote them.
    head: Vec<u8>,
    /// The end of this sink's most recent write.
    tail: Vec<u8>,
    tail_end: u64,
}

impl Marks {
    /// Remembers parts of `text`, which the sink has just written. `end` is the offset in the file at which the text ends.
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
