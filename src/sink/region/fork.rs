//! Regions in a forked child. Right after the fork, the child gets its own copy of the memory that it shares with the parent.
//! When the child first uses a session of its parent, the child takes over the parent's state, and the regions get new files.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::adopt::swap;
use super::create::map_two_views;
use super::exchange::{for_pages, BLOCK};
use super::lost_pages::Pages;
use super::naming::Naming;
use super::new_file::New;
use super::placement::Placement;
use super::regions::{refused, Regions};
use super::state::{Backing, Parts, Region};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Advice, READ_EXEC};
use crate::sys::file::{self, Held};
use crate::sys::held_dir::Dir;
use crate::sys::maps::{self, Mapping};
use crate::sys::rights;

impl Regions {
    /// Called in the parent after a fork. If the child may have got files, records the fork. Returns whether the caller must
    /// notify the writer.
    pub fn has_forked(&self) -> bool {
        self.all().any(|region| region.has_shared_file()) && self.children.add()
    }

    /// Gives a forked child its own copies of the memory that it shares with its parent. Runs before anything else in the
    /// child. After this call, parent and child do not see each other's writes.
    ///
    /// Only the forking thread exists in the child, so nothing else in the child uses the memory. The parent's other threads
    /// may write to the memory during the copy. This is allowed, because the kernel copies the bytes. The kernel also allows
    /// writes to a file while it reads the file.
    pub fn part_in_child(&self, status: &Status) {
        let may_have_names = status.sinks().has(Sinks::REGION) && !rights::are_more();
        for region in self.all() {
            let Backing::TwoViews { write } = region.kind else { continue };
            let named = match may_have_names && region.has_shared_file() {
                true => copy_with_name(region, write).map(|(file, path)| (file, Some(path))),
                false => Err(io::ErrorKind::NotFound.into()),
            };
            let copied = named.or_else(|_| {
                let file = copy(region)?;
                map_two_views(&file, &region.place, write, region.len()).map(|()| (file, None))
            });
            if let Ok((file, path)) = copied {
                region.exec.store(READ_EXEC, Ordering::Relaxed);
                let held = Held::new(file).ok().map(Arc::new);
                region.set_inode(held.as_ref().map_or(0, |file| file.identity().inode));
                // If another thread held this lock at the fork, `naming` does not get the file. If the child makes no other
                // file when it takes over, the library can neither enlarge the region nor give its pages back.
                if let Ok(mut naming) = region.naming.try_lock() {
                    naming.set_file_of_child(held, path);
                }
            }
        }
    }

    /// Called in a forked child that takes over its parent's state. Adds the parent's regions, with new files if the sink runs.
    pub fn inherit(&self, status: &Status, parent: &Regions) {
        if let Ok(mut settings) = parent.settings.try_lock() {
            // Without this step, each generation of children would have one more open descriptor.
            self.settings().last_dir = settings.last_dir.take();
        }
        for old in parent.all().filter(|region| region.gone() == NEVER) {
            let had_file = match old.file.try_lock() {
                // The child must not use this file, because its descriptor is the parent's.
                Ok(mut file) => file.take().is_some(),
                Err(_) => true,
            };
            let made = match had_file {
                true => self.again(status, old),
                false => None,
            };
            let is_named = made.is_some();
            let parts = made.unwrap_or_else(|| plain(old));
            if !is_named && old.is_mapping_group() {
                // Memory that does not belong to the group also lies in the group's range, so the range cannot be a region.
                continue;
            }
            if let Ok(mut naming) = old.naming.try_lock() {
                // A file that was made for this process at the fork becomes an old file. Any other file belongs to the parent.
                if let Some((path, identity)) = naming.of_child() {
                    let bytes = std::fs::metadata(&path).map_or(0, |data| data.blocks() * 512);
                    self.keep_old(path, identity, bytes);
                }
                naming.end();
            }
            if let Ok(region) = self.publish(status, parts) {
                // The host may have unmapped parts of the region.
                if let (Backing::Private { .. }, Ok(maps)) = (region.kind, maps::within(region.start(), region.end())) {
                    self.check(status, region, &maps);
                }
            }
        }
    }

    /// Maps the memory of a region anew, with a new file.
    fn again(&self, status: &Status, old: &Region) -> Option<Parts> {
        // If the next file begins at the same place as the present file of this process, perf 7 continues to use the present
        // file.
        let is_known = |naming: &Naming| old.is_private() || naming.of_child().is_some();
        let is_next = |naming: &Naming| is_known(naming) && !naming.begins_at_code() && old.can_begin_at_code(naming);
        let at_code = old.naming.try_lock().is_ok_and(|naming| is_next(&naming))
            && (!old.is_private() || old.executes_in_one_piece());
        let made = self.new_file(status, at_code).and_then(|new| {
            let path = new.naming.path.clone();
            let made = match old.kind {
                Backing::TwoViews { write } => refill(new, old, write),
                Backing::Private { .. } => adopt_again(new, old),
            };
            made.map_err(|error| describe("map", &path, &error))
        });
        made.map_err(|text| refused(status, text)).ok()
    }
}

/// Makes a file with the bytes of a region, and with all information that the parent's file has about these bytes. Then maps
/// the new file.
fn copy_with_name(region: &Region, write: u64) -> io::Result<(File, PathBuf)> {
    let busy = || io::Error::from(io::ErrorKind::WouldBlock);
    let mut naming = region.naming.try_lock().map_err(|_| busy())?;
    let (from, path) =
        (naming.open_file().ok_or_else(busy)?, naming.path_for_child(std::process::id()).ok_or_else(busy)?);
    drop(naming);
    let data = from.metadata()?;
    // The file system must have free room for twice the region's length. The copy has holes, and the child may later write to
    // the pages of these holes.
    let free = path.parent().and_then(file::free_space);
    if free.is_some_and(|free| free < 2 * region.len()) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let (dir, name) = (Dir::of(&path)?, path.file_name().unwrap_or_default());
    let file = file::claim(&dir, name, data.mode() & 0o777, file::ANYWHERE)?;
    let (text, end) = (region.text(), region.text() + region.place.max_len);
    let copied = file
        .set_len(data.len())
        .and_then(|()| copy_text(region, &file))
        .and_then(|()| copy_data(&from, &file, 0..text))
        .and_then(|()| copy_data(&from, &file, end..data.len()))
        .and_then(|()| map_two_views(&file, &region.place, write, region.len()));
    copied.inspect_err(|_| drop(dir.remove(name)))?;
    Ok((file, path))
}

/// Copies a part of a file, without its holes.
fn copy_data(from: &File, to: &File, range: Range<u64>) -> io::Result<()> {
    let mut next = range.start;
    let mut buffer = Vec::new();
    while let Some(data) = code_memory::data_in(from, next..range.end)? {
        for at in (data.start..data.end).step_by(BLOCK) {
            let len = (data.end - at).min(BLOCK as u64) as usize;
            buffer.try_reserve_exact(len.saturating_sub(buffer.len()))?;
            buffer.resize(len, 0);
            from.read_exact_at(&mut buffer, at)?;
            to.write_all_at(&buffer, at)?;
        }
        next = data.end;
    }
    Ok(())
}

/// Makes a file without a name that has the bytes of a region.
fn copy(region: &Region) -> io::Result<File> {
    let file = code_memory::nameless_file()?;
    let text = region.text();
    file.set_len(text + region.place.max_len)?;
    copy_text(region, &file)?;
    Ok(file)
}

/// Copies a region's memory without its holes, to keep the fork cheap for a child that only executes another program.
fn copy_text(region: &Region, to: &File) -> io::Result<()> {
    let held = region.naming.try_lock().ok().and_then(|mut naming| naming.open_file());
    let Some(from) = held else {
        let piece = whole(region);
        return for_pages(&piece, |addr, bytes| to.write_all_at(bytes, addr - region.place.base));
    };
    // Readahead by the kernel would turn holes into data.
    code_memory::advise(region.start(), region.len(), Advice::Random);
    let end = region.text() + region.len();
    let mut next = region.text();
    while let Some(data) = code_memory::data_in(&from, next..end)? {
        code_memory::write_from(region.place.base + data.start, data.end - data.start, to, data.start)?;
        next = data.end;
    }
    Ok(())
}

fn whole(region: &Region) -> Mapping {
    let (start, end, offset) = (region.start(), region.end(), region.text());
    Mapping { start, end, protection: READ_EXEC, shared: true, offset, inode: 0, special: false }
}

fn refill(new: New, old: &Region, write: u64) -> io::Result<Parts> {
    new.put_in_place(old.place.clone(), old.len(), |naming, memory| {
        let file = naming.create_file(memory.clone(), old.layout())?;
        code_memory::provide(memory, old.text(), old.len())?;
        copy_text(old, memory)?;
        map_two_views(memory, &old.place, write, old.len())?;
        Ok((old.kind, file))
    })
}

/// Gives a new file to private memory that is still a mapping of the parent's file.
fn adopt_again(mut new: New, old: &Region) -> io::Result<Parts> {
    let pieces = old.mapped().inspect_err(|_| new.naming.remove())?;
    let group = if old.is_mapping_group() { Pages::of_group(old.start(), old.len()).ok() } else { None };
    if let Some(pages) = &group {
        // The pages join at the time 0, which is earlier than every registration. So all code of the parent counts as code that
        // was registered after the pages joined.
        pieces.iter().for_each(|piece| pages.join(piece.start, piece.end, 0));
    }
    let place = Placement { max_len: old.len(), ..old.place.clone() };
    let parts = swap(new, &place, &pieces)?;
    Ok(Parts { kind: old.kind, pages: group.unwrap_or(parts.pages), ..parts })
}

/// Turns the region into a region without a file. The other sinks write its code.
fn plain(old: &Region) -> Parts {
    // Profilers look for names in the parent's file as long as the memory is a mapping of that file.
    let is_whole = || {
        old.mapped().is_ok_and(|pieces| pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>() == old.len())
    };
    let may_be_plain = match old.kind {
        Backing::TwoViews { .. } => false,
        // `release` unmaps the whole range of a created region without a file, so the whole range must still be the region's.
        Backing::Private { adopted, .. } => adopted || is_whole(),
    };
    let is_plain = may_be_plain && old.make_plain().is_ok();
    let held = old.naming.try_lock().ok().and_then(|mut naming| naming.open_file()).filter(|_| !is_plain);
    Parts {
        place: old.place.clone(),
        kind: old.kind,
        len: old.len(),
        pages: Pages::new(old.start(), old.place.max_len),
        naming: Naming::nameless(held),
        file: None,
    }
}
