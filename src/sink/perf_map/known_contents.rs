//! What the sink remembers of a shared map, and when it rewrites one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The least time between two rewrites, unless somebody asks for a flush.
pub const REWRITE_INTERVAL: Duration = Duration::from_millis(50);
/// Rewriting takes at most this part of the writer's time.
pub const REWRITE_SHARE: u32 = 20;

/// How much is remembered.
const MARK: usize = 64;

/// The known contents of the file. With them the sink notices when another writer has opened the file as if it were new.
#[derive(Debug, Default)]
pub struct Marks {
    /// The beginning, if that is ours.
    head: Vec<u8>,
    /// The end of what we have written last.
    tail: Vec<u8>,
    tail_end: u64,
}

impl Marks {
    /// Text has been written that ends there.
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
