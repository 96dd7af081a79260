//! Enlarges regions, gives pages of regions back to the system, and ends regions.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::addresses::unmap_own;
use super::exchange;
use super::old_files::Past;
use super::regions::Regions;
use super::state::{Backing, Region};
use crate::api::error::{Error, Result};
use crate::queue::file_thread;
use crate::queue::status::Status;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Sharing, READ_WRITE};
use crate::sys::mapping::page_size;

impl Regions {
    /// Enlarges a region that has two views. The new memory is added at the region's end.
    pub fn grow(&self, start: u64, size: u64) -> Result<()> {
        let _changing = self.begin_change()?;
        let region = self.starting(start)?;
        let Backing::TwoViews { write } = region.kind else { return Err(Error::Region) };
        let (old, new) = (region.len(), code_memory::whole_pages(size).ok_or(Error::TooLarge)?);
        if new > region.place.max_len {
            return Err(Error::TooLarge);
        }
        if new <= old {
            return Ok(());
        }
        let file = region.naming().file().map_err(|_| Error::SinkFailed)?;
        let (text, more) = (region.text(), new - old);
        let grown = code_memory::provide(&file, text + old, more).and_then(|()| {
            // SAFETY: the range was reserved for the region, and nobody uses it yet.
            unsafe { code_memory::map_over(write + old, more, READ_WRITE, Sharing::Shared, &file, text + old)? };
            region.map_code(&file, start + old, start + new)
        });
        grown.map_err(|_| {
            // SAFETY: nobody uses the new part of the executable view.
            let _ = unsafe { code_memory::reserve_over(start + old, more) };
            // SAFETY: nobody uses the new part of the writable view.
            let _ = unsafe { code_memory::reserve_over(write + old, more) };
            Error::NoMemory
        })?;
        if let Some(file) = region.opened().as_mut() {
            file.set_text_len(new);
        }
        region.len.store(new, Ordering::Release);
        Ok(())
    }

    /// Gives whole pages of a region back to the system. Afterwards, the pages contain zeros.
    pub fn discard(&self, addr: u64, size: u64) -> Result<()> {
        let page = page_size() as u64;
        if size == 0 {
            return Err(Error::SizeZero);
        }
        if !addr.is_multiple_of(page) || !size.is_multiple_of(page) {
            return Err(Error::Alignment);
        }
        let region = self.all().find(|region| region.holds(addr, size)).ok_or(Error::Region)?;
        if !region.is_private() {
            let file = region.naming().file().map_err(|_| Error::SinkFailed)?;
            return code_memory::punch(&file, addr - region.place.base, size).map_err(|_| Error::NoMemory);
        }
        // While this thread locks the file, the writer does not write to it.
        let _written = region.opened();
        let mut naming = region.naming();
        let shows_header = addr == region.place.base && naming.has_file();
        let is_inherited = region.is_inherited();
        if naming.has_file() && !is_inherited {
            // The file has breakpoints where code was registered, which must become zeros.
            let file = naming.file().map_err(|_| Error::SinkFailed)?;
            let end = addr + size - region.place.base;
            let start = addr - region.place.base + if shows_header { page } else { 0 };
            let pages = (start..end).step_by(page as usize);
            exchange::clear(&file, start, end - start, pages).map_err(|_| Error::NoMemory)?;
        }
        // SAFETY: the caller gives these pages up, and the file has zeros for these pages.
        let dropped = unsafe { code_memory::drop_pages(addr, size) };
        // The header page of the file is not zero, and a forked child does not change its parent's file. So the process gets its
        // own copies of these pages, filled with zeros.
        let to_zero = if is_inherited { size } else { u64::from(shows_header) * page };
        dropped.and_then(|()| exchange::own_zeros(addr, to_zero)).map_err(|_| Error::NoMemory)
    }

    /// Makes the file system provide room again for pages that were given back, so that an access to these pages raises no
    /// signal.
    pub fn provide(&self, addr: u64, size: u64) -> Result<()> {
        let region = self.all().find(|region| region.holds(addr, size)).ok_or(Error::Region)?;
        let file = region.naming().file().map_err(|_| Error::SinkFailed)?;
        code_memory::provide(&file, addr - region.place.base, size).map_err(|_| Error::NoMemory)
    }

    fn starting(&self, start: u64) -> Result<&'static Region> {
        let mut all = self.all().filter(|region| region.start() == start && region.gone() == NEVER);
        // If a region has lost its first page, another region may begin at the same address. The region that still has its
        // first page is preferred.
        let first = all.next();
        all.find(|region| !region.pages.any_lost(start, start + 1)).or(first).ok_or(Error::Region)
    }

    /// Ends a region. A created region is unmapped. An adopted region becomes plain memory again, with the same bytes. The
    /// writer should already have written the code in the region.
    pub fn release(&self, status: &Status, start: u64) -> Result<()> {
        let _changing = self.begin_change()?;
        let region = self.starting(start)?;
        let inode = region.inode();
        match region.kind {
            Backing::Private { adopted: true, .. } => region.make_plain()?,
            // Without the list of mappings, `unmap` would leave the code mapped.
            Backing::Private { .. } if inode.is_some() => drop(region.mapped().map_err(|_| Error::NoMemory)?),
            _ => {}
        }
        if !self.end(status, region) {
            // The host had unmapped the region, so the writer has already ended it.
            return Ok(());
        }
        // SAFETY: the caller gives up the memory of the region.
        unsafe { unmap(region, inode) };
        Ok(())
    }

    /// Ends a region that the host has unmapped. The writer must have handled all code of the region.
    pub fn end_gone(&self, status: &Status, region: &'static Region) {
        let inode = region.inode();
        if self.end(status, region) {
            // SAFETY: the host has unmapped the region's memory.
            unsafe { unmap(region, inode) };
        }
    }

    /// Removes a region from the list and completes its file. Returns false if another thread has already ended the region.
    fn end(&self, status: &Status, region: &'static Region) -> bool {
        if !self.forget(region) {
            return false;
        }
        let left = region.naming().take_of_writer();
        self.settings().to_close.extend(left);
        let mode = self.mode();
        let had_file = file_thread::run(move || {
            let Some(mut file) = region.opened().take() else { return false };
            if region.is_private() && region.replace_by_copy(&mut file, mode).is_ok() {
                file.give_all_back();
            } else {
                let _ = file.finish(region.build_id());
                file.give_text_back();
            }
            true
        });
        if had_file {
            status.counters.regions_ended.add(1);
            self.keep_last(region);
        }
        // The `Region` is never freed, but keeps little memory and no descriptor.
        region.naming().end();
        region.set_inode(0);
        true
    }

    /// For the writer: closes the writer's descriptors of regions that have ended.
    pub fn close_ended(&self) {
        let left = std::mem::take(&mut self.settings().to_close);
        drop(left);
    }

    /// Records the file of an ended region as an old file, so that the files of ended regions do not accumulate.
    fn keep_last(&self, region: &Region) {
        for (number, Past { path, identity, .. }) in last_of(region).into_iter().enumerate() {
            let bytes = if number > 0 { 0 } else { std::fs::metadata(&path).map_or(0, |data| data.blocks() * 512) };
            self.keep_old(path, identity, bytes);
        }
    }

    /// At the exit of the process: replaces the file of each region with private memory by a copy that contains the bytes of
    /// the code. Returns false if the replacement takes longer than `timeout`.
    pub fn write_last(&self, timeout: Duration) -> bool {
        let (regions, mode): (Vec<_>, _) = (self.all().filter(|region| region.is_private()).collect(), self.mode());
        let has_any = !regions.is_empty();
        let write = move || {
            for region in regions {
                let _ = region.opened().as_mut().map(|file| region.replace_by_copy(file, mode));
            }
        };
        !has_any || file_thread::run_for(timeout, write).is_some()
    }

    /// Removes all files that regions have or had. After this call, the other sinks report the code in the present regions.
    pub fn remove_files(&self, status: &Status) {
        std::mem::take(&mut self.settings().files).remove();
        for region in self.all() {
            let Some(file) = region.opened().take() else { continue };
            drop(file);
            region.sharing.is_changed();
            region.has_failed.store(true, Ordering::Relaxed);
            status.counters.regions_ended.add(1);
            last_of(region).iter().for_each(Past::remove);
        }
    }
}

/// Unmaps the library's mappings of a region: all mappings of a created region, but only the header page and the tables of an
/// adopted region. Memory that the host has mapped in the same range stays. `inode` is the inode number that the region's file
/// had.
///
/// # Safety
/// Nobody may use the memory of a created region any longer.
unsafe fn unmap(region: &Region, inode: Option<u64>) {
    let place = &region.place;
    // SAFETY: the caller promises that nobody uses the memory of a created region any longer. Nobody in this process reads the
    // tables.
    unsafe {
        if let Backing::Private { adopted: true, .. } = region.kind {
            place.reserved().for_each(|range| _ = unmap_own(range, inode, place.base, &[]));
            return;
        }
        let blindly = |range: Range<u64>| code_memory::unmap(range.start, range.end - range.start);
        // `beside` are the parts of the range that have no code.
        let unmap = |range: Range<u64>, base, beside: &[Range<u64>]| match inode {
            Some(_) if unmap_own(range.clone(), inode, base, beside).is_ok() => {}
            // Without `/proc`, the library cannot recognize its mappings. The host may have replaced a private mapping of code
            // by its own memory, so only the parts without code are unmapped.
            Some(_) if region.is_private() => beside.iter().cloned().for_each(blindly),
            // The mappings of a region without a file cannot be recognized in the list of mappings.
            _ => blindly(range),
        };
        unmap(place.whole(), place.base, &[place.base..region.start(), region.end()..place.tables.end]);
        if let Backing::TwoViews { write } = region.kind {
            let (code_end, end) = (write + region.len(), write + place.max_len);
            unmap(write..end, write.wrapping_sub(place.text()), std::slice::from_ref(&(code_end..end)));
        }
    }
}

/// Returns one `Past` for each name of a region's file.
fn last_of(region: &Region) -> Vec<Past> {
    let naming = region.naming();
    let Some(identity) = naming.last() else { return Vec::new() };
    naming.paths().map(|path| Past { path, identity, bytes: 0 }).collect()
}
