//! Remembers live code when a jitdump is stopped: the positions of the code's groups in the file, and the code's info records.

use crate::format::code_info::Info;
use crate::format::jitdump::{is_group_of, LOAD_FIXED_SIZE};
use crate::registry::{Home, Registry, Stored};
use crate::sys::sort::sort_by_key;

/// The live code in the file of a stopped jitdump: the code index of each piece of code, and the position of its group, sorted
/// by index. If the sink is started again with the same file, this code need not be written again. Code that moves before the
/// restart gets a new index, so its entry is not found.
#[derive(Debug, Default)]
pub struct Reopened(Vec<(u64, Stored)>);

impl Reopened {
    pub(super) fn find(&self, index: u64) -> Option<Stored> {
        let at = self.0.binary_search_by_key(&index, |&(index, _)| index).ok()?;
        Some(self.0[at].1)
    }

    /// Forgets each piece of code if `is_kept` returns false for its group.
    pub(super) fn retain(&mut self, is_kept: impl Fn(Stored) -> bool) {
        self.0.retain(|&(_, stored)| is_kept(stored));
    }

    fn note(&mut self, index: u64, stored: Stored) {
        // If there is no memory, the code is not remembered, and may later be written a second time, which only makes the file
        // longer.
        if self.0.try_reserve(1).is_ok() {
            self.0.push((index, stored));
        }
    }
}

/// Makes the registry forget where the jitdump has the groups of live code. If `keep` is true, the registry keeps the info
/// records of the groups that can be read. Returns the positions of the groups that can be read.
pub fn forget_places(registry: &mut Registry, keep: bool, read: impl Fn(Stored) -> Option<Vec<u8>>) -> Reopened {
    let mut left = Reopened::default();
    for id in registry.live_by_place(Some(Home::Plain)).into_iter().flatten() {
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
    sort_by_key(&mut left.0, |&(index, _)| index);
    left
}
