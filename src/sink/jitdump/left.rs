//! Live code of a jitdump that is stopped: where the file has it, and what is kept of it in memory.

use crate::format::info::Info;
use crate::format::jitdump::{is_group_of, LOAD_FIXED_SIZE};
use crate::registry::{Registry, Stored};

/// Which code a jitdump has that is stopped, and where, by its index: code that moves gets another one. If it is started again and
/// still is the same file, that code need not be written to it another time.
#[derive(Debug, Default)]
pub struct Reopened(Vec<(u64, Stored)>);

impl Reopened {
    pub(super) fn find(&self, index: u64) -> Option<Stored> {
        let at = self.0.binary_search_by_key(&index, |&(index, _)| index).ok()?;
        Some(self.0[at].1)
    }

    /// Keeps code for which this is so.
    pub(super) fn retain(&mut self, is_kept: impl Fn(Stored) -> bool) {
        self.0.retain(|&(_, stored)| is_kept(stored));
    }

    fn note(&mut self, index: u64, stored: Stored) {
        // Without memory it is written twice, which costs no more than room.
        if self.0.try_reserve(1).is_ok() {
            self.0.push((index, stored));
        }
    }
}

/// Live code loses its place in the jitdump. If `keep` is set, its info records are kept as far as they can be read. Returns where
/// the groups lay that could be read.
pub fn forget_places(registry: &mut Registry, keep: bool, read: impl Fn(Stored) -> Option<Vec<u8>>) -> Reopened {
    let mut left = Reopened::default();
    for id in registry.live_by_place().into_iter().flatten() {
        let (Some(live), Some(name)) = (registry.get(id), registry.name_of(id)) else { continue };
        let Some(stored) = live.stored else { continue };
        let head = read(stored).filter(|head| is_group_of(head, live.size, live.index, name));
        let info_len = stored.len - LOAD_FIXED_SIZE - name.len() - 1;
        if head.is_some() {
            left.note(live.index, stored);
        }
        let mut info = head.filter(|_| keep).unwrap_or_default();
        info.truncate(info_len);
        registry.keep_info(id, Info::new(&info));
    }
    left.0.sort_unstable_by_key(|&(index, _)| index);
    left
}
