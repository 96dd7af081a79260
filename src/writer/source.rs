//! Lists the chunks of a registering thread that the writer has to read.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::queue::chunk::Chunk;
use crate::queue::thread_slot::ThreadSlot;

/// A registering thread.
pub(super) struct Source {
    pub(super) slot: Arc<ThreadSlot>,
    /// The full chunks, oldest first.
    pub(super) full: VecDeque<Chunk>,
    /// The chunk that the thread was filling when this round began.
    pub(super) current: Option<Chunk>,
    /// Whether the thread had ended when this round began.
    pub(super) ended: bool,
}

impl Source {
    pub(super) fn has_unread(&self) -> bool {
        self.unread() > 0
    }

    /// The number of records to read.
    pub(super) fn unread(&self) -> u64 {
        self.readings().map(|chunk| u64::from(chunk.committed().saturating_sub(chunk.consumed()))).sum()
    }

    /// The chunks to read in this round, oldest first.
    pub(super) fn readings(&self) -> impl Iterator<Item = Chunk> + '_ {
        // If the thread has sent the chunk meanwhile, the chunk is also among the full chunks.
        let current = self.current.filter(|current| !self.full.contains(current));
        self.full.iter().copied().chain(current)
    }
}
