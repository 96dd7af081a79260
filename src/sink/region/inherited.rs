//! Lets a forked child share the pages of private regions with its parent, until the child registers code in the region.
//!
//! A private region that the child has not touched is still a mapping of the parent's file, so the child and the parent share
//! its unchanged pages, and profilers find the names of the inherited code in the parent's file. Such a region is *inherited*.
//! It has no file of its own. A region gets its own file, and so its own copy of all pages, in a call that
//!
//! - registers code in the region, or moves code into it, because the parent's file cannot name this code; or
//! - registers, moves or unregisters any code, after the parent has changed its file so that the file no longer suits the child:
//!   the parent has registered code over code that ran at the fork, has ended the region, or has exited.
//!
//! A child cannot copy the pages in another call or on another thread, because the host might write to the memory meanwhile.
//! Parent and children share a counter for each region (see `sharing`), by which children notice the changes of the parent's file.

use std::sync::atomic::Ordering;

use super::addresses::Placement;
use super::fork::plain;
use super::lost_pages::Pages;
use super::naming::Naming;
use super::regions::Regions;
use super::state::{Parts, Region};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sys::clock::NEVER;
use crate::sys::panic_guard;
use crate::sys::sync::lock;
use crate::sys::thread::undisturbed;

impl Region {
    /// Whether the memory is still a mapping of the parent's file, which names the region's code.
    pub fn is_inherited(&self) -> bool {
        self.sharing.is_inherited()
    }

    /// Records that the region's own file lacks the names of inherited code.
    pub(super) fn begin_without_names(&self) {
        self.sharing.begin_without_names();
    }

    /// For the writer: whether the writer now has to add the names of inherited code to the region's own file, or has to report
    /// the code to the other sinks, because the region has no file.
    pub fn takes_over_names(&self) -> bool {
        self.sharing.takes_over_names()
    }

    /// In a forked child: the parts of a region that stays a mapping of the parent's file. `None` if the region cannot stay so.
    pub(super) fn lent(&self) -> Option<Parts> {
        let changes = self.sharing.for_child().filter(|_| self.is_private())?;
        let naming = Naming::lent(&*self.naming.try_lock().ok()?)?;
        let pages = match self.is_mapping_group() {
            true => self.pages_of_group(&self.mapped().ok()?)?,
            false => Pages::new(self.start(), self.len()),
        };
        let place = Placement { max_len: self.len(), ..self.place.clone() };
        Some(Parts { place, kind: self.kind, len: self.len(), pages, naming, file: None, inherited: Some(changes) })
    }

    /// Gives an inherited region its own file, or, if `parts` have no file, makes it a region without a file.
    fn part(&self, parts: Parts) {
        {
            let mut file = lock(&self.file);
            let mut naming = self.naming();
            self.set_inode(parts.naming.identity().map_or(0, |identity| identity.inode));
            *naming = parts.naming;
            self.has_failed.store(parts.file.is_none(), Ordering::Relaxed);
            *file = parts.file.map(Box::new);
        }
        self.begin_without_names();
        self.is_new.store(true, Ordering::Relaxed);
        self.sharing.is_parted();
    }
}

impl Regions {
    /// Called before a fork.
    pub fn note_fork(&self) {
        self.all().for_each(|region| region.sharing.note_fork());
    }

    /// Gives all inherited regions their own files whose parent's file no longer suits this process. Called in calls that
    /// register, move or unregister code.
    #[cold]
    #[inline(never)]
    pub(super) fn heed_parent(&self, status: &Status) {
        self.all().filter(|region| region.sharing.is_outdated()).for_each(|region| self.part(status, region));
    }

    /// Gives a region its own file if it is inherited. While the bridge registers code, the host may be writing to the memory,
    /// so the region stays inherited.
    pub(super) fn part(&self, status: &Status, region: &'static Region) {
        if region.is_inherited() && !panic_guard::is_beside_host() {
            undisturbed(|| {
                // If another thread makes or ends regions for too long, a later call tries again.
                if let Ok(_changing) = self.begin_change() {
                    self.part_now(status, region);
                }
            });
        }
    }

    /// Like `part`, for a thread that has a `Changer`.
    pub(super) fn part_now(&self, status: &Status, region: &'static Region) {
        if region.is_inherited() && region.gone() == NEVER && status.sinks().has(Sinks::REGION) {
            let parts = self.again(status, region);
            let has_file = parts.is_some();
            region.part(parts.unwrap_or_else(|| plain(region)));
            self.has_parted(status, region, has_file);
        }
    }
}
