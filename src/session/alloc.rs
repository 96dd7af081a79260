//! The calls of a session that allocate, shrink and free pieces of code memory.

use crate::api::error::{Error, Result};
use crate::api::options::Sinks;
use crate::code_alloc::{Kind, Source, Wanted};
use crate::session::fork;
use crate::session::handle::Ref;
use crate::sink::region::{CodeRegion, RegionOptions};
use crate::sys::thread;

impl Source for Ref {
    fn create(&self, wanted: &RegionOptions) -> Result<CodeRegion> {
        fork::watch();
        self.process.regions.create(&self.shared.status, wanted)
    }

    fn grow(&self, exec: u64, size: u64) -> Result<()> {
        self.process.regions.grow(exec, size)
    }

    fn discard(&self, exec: u64, size: u64) -> Result<()> {
        self.process.regions.discard(exec, size)
    }

    fn provide(&self, exec: u64, size: u64) -> Result<()> {
        self.process.regions.provide(exec, size)
    }

    fn unregister(&self, exec: u64, size: u64) {
        // If the record of this call is dropped, a counter shows the loss, and the code stays registered until other code is
        // registered over it.
        let _ = self.unregister_range(exec, size, false);
    }
}

impl Ref {
    pub fn alloc(&self, size: u64, alignment: u64, near: u64) -> Result<CodeRegion> {
        let wanted = Wanted::new(size, alignment, near, self.is_named())?;
        self.owned(thread::quietly(|| self.process.allocator.alloc(self, wanted))?)
    }

    /// Allocates a piece for a trampoline of the library. A piece with one view contains the trampoline already.
    pub(super) fn alloc_for_trampoline(&self, size: u64, kind: Kind) -> Result<CodeRegion> {
        let wanted = Wanted::for_trampoline(size, self.is_named(), kind)?;
        match self.process.allocator.spare(wanted) {
            Some(piece) => Ok(piece),
            None => self.owned(thread::quietly(|| self.process.allocator.alloc_ahead(self, wanted))?),
        }
    }

    /// Whether a new region gets a file.
    fn is_named(&self) -> bool {
        self.shared.status.sinks().has(Sinks::REGION)
    }

    fn owned(&self, piece: CodeRegion) -> Result<CodeRegion> {
        self.still_open(piece).inspect_err(|_| {
            // The caller does not get the piece, so the piece is freed.
            let _ = self.free(piece.exec);
        })
    }

    pub fn shrink(&self, exec: u64, size: u64) -> Result<()> {
        thread::quietly(|| self.process.allocator.shrink(exec, size))
    }

    pub fn free(&self, exec: u64) -> Result<()> {
        self.release_if_empty(thread::quietly(|| self.process.allocator.free(self, exec))?);
        Ok(())
    }

    /// Frees the piece of a trampoline. If `entry` is another address, the call has no effect.
    pub fn free_trampoline(&self, entry: u64) -> Result<()> {
        self.release_if_empty(thread::quietly(|| self.process.allocator.free_trampoline(self, entry))?);
        Ok(())
    }

    /// Releases a region that the allocator no longer needs.
    fn release_if_empty(&self, region: Option<u64>) {
        if let Some(region) = region {
            // `release_region` flushes before it releases the region, so that the files of all sinks get the region's code. If
            // the release fails, the region stays.
            let _ = self.release_region(region);
        }
    }

    /// Refuses a region that belongs to the allocator.
    pub fn is_not_allocators(&self, exec: u64) -> Result<()> {
        match thread::quietly(|| self.process.allocator.has(exec))? {
            true => Err(Error::Region),
            false => Ok(()),
        }
    }
}
