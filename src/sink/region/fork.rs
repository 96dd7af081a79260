//! Handles regions in a forked child. Right after the fork, the child gets its own copy of the memory that it would share with
//! the parent. When the child first uses a session of its parent, the child takes over the parent's state, and the regions get
//! new files.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::addresses::Placement;
use super::adopt::{swap, ATTEMPTS};
use super::create::map_two_views;
use super::exchange::{for_pages, BLOCK};
use super::lost_pages::Pages;
use super::naming::Naming;
use super::new_file::New;
use super::regions::{refused, Regions};
use super::state::{Backing, Parts, Region};
use crate::api::options::Sinks;
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sys::clock::NEVER;
use crate::sys::code_memory::{self, Advice, READ_EXEC, READ_WRITE};
use crate::sys::file::{self, Held};
use crate::sys::held_dir::Dir;
use crate::sys::maps::{self, Mapping};
use crate::sys::privileges;

impl Regions {
    /// Called in the parent after a fork: records the fork if the child may have got files. Returns whether the caller must
    /// notify the writer.
    pub fn has_forked(&self) -> bool {
        self.all().any(|region| region.has_shared_file()) && self.children.add()
    }

    /// How many bytes of memory a forked child would share with this process.
    pub fn shared_len(&self) -> u64 {
        self.all().filter(|region| !region.is_private()).map(Region::len).sum()
    }

    /// Gives a forked child its own copies of the memory that it shares with its parent. Runs before any other code in the
    /// child. Calls `go_on` as soon as the parent may change the shared memory. The argument of `go_on` is true if all of the
    /// shared memory could be copied. Memory that cannot be copied becomes inaccessible in the child.
    ///
    /// Only the forking thread exists in the child, so nothing else in the child uses the memory. The parent's other threads
    /// may write to the memory during the copy. These writes do no harm: the kernel makes the copy, and allows writes to a file
    /// while the file is read.
    pub fn part_in_child(&self, status: &Status, go_on: impl FnOnce(bool)) {
        let may_have_names = status.sinks().has(Sinks::REGION) && !privileges::are_more();
        let mut is_parted = true;
        let mut copies = Vec::new();
        for region in self.all() {
            let Backing::TwoViews { write } = region.kind else { continue };
            let (file, name) = match Copy::of(region, write, may_have_names && region.has_shared_file()) {
                Ok(Copy { file, name }) => (Held::new(file).ok().map(Arc::new), name),
                Err(_) => {
                    is_parted &= copy_without_file(region, write).inspect_err(|_| hide(region, write)).is_ok();
                    (None, None)
                }
            };
            set_file(region, file.clone(), None);
            if let (Some(file), Some(name), Ok(())) = (file, name, copies.try_reserve(1)) {
                copies.push((region, write, file, name));
            }
        }
        go_on(is_parted);
        // The parent does not wait until the copies become files with names, because the disk may be slow.
        for (region, write, copy, name) in copies {
            if let Ok((file, path)) = name.give(&copy, region, write) {
                set_file(region, Held::new(file).ok().map(Arc::new), Some(path));
            }
        }
    }

    /// In a forked child that takes over its parent's state: adds the parent's regions. If the sink for regions runs, the regions
    /// get new files, or stay inherited until they need new files (see `inherited`).
    pub fn inherit(&self, status: &Status, parent: &Regions) {
        if let Ok(mut settings) = parent.settings.try_lock() {
            // The child takes over the descriptor of the directory. Otherwise each generation of children would have one more
            // open descriptor.
            self.settings().last_dir = settings.last_dir.take();
        }
        let lends = self.settings().lends && status.sinks().has(Sinks::REGION);
        for old in parent.all().filter(|region| region.gone() == NEVER) {
            let had_file = match old.file.try_lock() {
                // The child must not use this `RegionFile`, because its descriptor belongs to the parent.
                Ok(mut file) => file.take().is_some(),
                Err(_) => true,
            };
            let has_names = had_file || old.is_inherited();
            let lent = if has_names && lends { old.lent() } else { None };
            let made = match has_names {
                true => lent.or_else(|| self.again(status, old)),
                false => None,
            };
            let is_named = made.is_some();
            let parts = made.unwrap_or_else(|| plain(old));
            if !is_named && old.is_mapping_group() {
                // A region without a file would cover the whole range of the mapping group, and so also memory that does not
                // belong to the group.
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
                region.begin_without_names();
                // The host may have unmapped parts of the region in the meantime.
                if let (Backing::Private { .. }, Ok(maps)) = (region.kind, maps::within(region.start(), region.end())) {
                    self.check(status, region, &maps);
                }
            }
        }
    }

    /// Maps the memory of a region again, with a new file.
    pub(super) fn again(&self, status: &Status, old: &Region) -> Option<Parts> {
        // If the object of the new file began at the same address as the object of the present file, perf 7 would continue to
        // use the present file.
        let is_known = |naming: &Naming| old.is_private() || naming.of_child().is_some();
        let is_next = |naming: &Naming| is_known(naming) && !naming.begins_at_code() && old.can_begin_at_code(naming);
        let at_code = old.naming.try_lock().is_ok_and(|naming| is_next(&naming))
            && (!old.is_private() || old.executes_in_one_piece());
        for attempt in 1.. {
            let new = self.new_file(status, at_code).map_err(|text| refused(status, text)).ok()?;
            let path = new.naming.path.clone();
            let made = match old.kind {
                Backing::TwoViews { write } => refill(new, old, write),
                Backing::Private { .. } => adopt_again(new, old),
            };
            match made {
                Ok(parts) => return Some(parts),
                // A forked child may have mapped this file (see `swap_range`).
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS => {}
                Err(error) => {
                    refused(status, describe("map", &path, &error));
                    return None;
                }
            }
        }
        None
    }
}

/// Sets the file of a region in a forked child. `path` is `None` if the file has no name.
fn set_file(region: &Region, file: Option<Arc<Held>>, path: Option<PathBuf>) {
    region.exec.store(READ_EXEC, Ordering::Relaxed);
    region.set_inode(file.as_ref().map_or(0, |file| file.identity().inode));
    // If another thread held the lock of `naming` at the fork, the lock stays locked in the child, so `naming` cannot store the
    // file. The region then cannot grow or give pages back until the child makes another file.
    if let Ok(mut naming) = region.naming.try_lock() {
        naming.set_file_of_child(file, path);
    }
}

/// A file in memory that a forked child maps instead of a region's file.
struct Copy {
    file: File,
    /// `None` if profilers find no names for the child's code. The copy then has only the bytes of the region's code, and no
    /// other parts of the region's file.
    name: Option<Name>,
}

/// The path and the permission bits of the file in which profilers find the names of a child's code.
struct Name {
    path: PathBuf,
    mode: u32,
}

impl Copy {
    fn of(region: &Region, write: u64, may_have_name: bool) -> io::Result<Copy> {
        let named = (|| {
            let mut naming = region.naming.try_lock().ok().filter(|_| may_have_name)?;
            let (from, path) = (naming.open_file()?, naming.path_for_child(std::process::id())?);
            let data = from.metadata().ok()?;
            Some((from, data.len(), Name { path, mode: data.mode() & 0o777 }))
        })();
        let file = code_memory::nameless_file()?;
        let (text, end) = (region.text(), region.text() + region.place.max_len);
        file.set_len(named.as_ref().map_or(end, |(_, len, _)| *len))?;
        copy_text(region, &file)?;
        if let Some((from, len, _)) = &named {
            copy_data(from, &file, 0..text)?;
            copy_data(from, &file, end..*len)?;
        }
        map_two_views(&file, &region.place, write, region.len())?;
        Ok(Copy { file, name: named.map(|(.., name)| name) })
    }
}

impl Name {
    /// Makes a file with this name and the contents of `copy`, and maps the file instead of `copy`.
    fn give(self, copy: &File, region: &Region, write: u64) -> io::Result<(File, PathBuf)> {
        let Name { path, mode } = self;
        // The free room on the file system must be at least twice the region's length, because the child may later write to the
        // holes of the file.
        let free = path.parent().and_then(file::free_space);
        if free.is_some_and(|free| free < 2 * region.len()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (dir, name) = (Dir::of(&path)?, path.file_name().unwrap_or_default());
        let file = file::claim(&dir, name, mode, file::ANYWHERE)?;
        let len = copy.metadata()?.len();
        let map = |file: &File| map_two_views(file, &region.place, write, region.len());
        let made = file.set_len(len).and_then(|()| copy_data(copy, &file, 0..len)).and_then(|()| {
            // Both views must show the same file.
            map(&file).inspect_err(|_| map(copy).unwrap_or_else(|_| hide(region, write)))
        });
        made.inspect_err(|_| drop(dir.remove(name)))?;
        Ok((file, path))
    }
}

/// Gives a forked child its own copy of a region's memory, without a file. So the copy needs no descriptor, and no limit for
/// the sizes of files applies.
fn copy_without_file(region: &Region, write: u64) -> io::Result<()> {
    let (start, len) = (region.start(), region.len());
    // SAFETY: both ranges belong to the region and have the same length. This process is a forked child, in which no other
    // thread runs yet.
    unsafe {
        code_memory::share_over(write, len)?;
        for_data(region, |data, _| {
            for_pages(data, |addr, bytes| {
                let to = (write + (addr - start)) as *mut u8;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                Ok(())
            })
        })?;
        code_memory::protect(write, len, READ_EXEC)?;
        code_memory::duplicate_over(write, start, len)?;
        code_memory::protect(write, len, READ_WRITE)
    }
}

/// Makes the memory of a region inaccessible in a forked child that cannot have its own copy, so that the child's writes do not
/// change its parent's code.
fn hide(region: &Region, write: u64) {
    for view in [write, region.start()] {
        // SAFETY: the child must not access the memory of its parent. If the child does, the kernel ends the child.
        let _ = unsafe { code_memory::protect(view, region.len(), libc::PROT_NONE) };
    }
}

/// Copies a part of a file, except for the holes.
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

/// Copies a region's memory to a file, except for the holes, to keep forks cheap for children that only execute another
/// program.
fn copy_text(region: &Region, to: &File) -> io::Result<()> {
    for_data(region, |data, has_no_holes| match has_no_holes {
        true => code_memory::write_from(data.start, data.end - data.start, to, data.start - region.place.base),
        false => for_pages(data, |addr, bytes| to.write_all_at(bytes, addr - region.place.base)),
    })
}

/// Calls `each` for the parts of a region's memory that are not holes of the region's file. If the file is not open, calls
/// `each` for the whole memory. The second argument of `each` is true if the file is open, so that the part has no holes.
fn for_data(region: &Region, mut each: impl FnMut(Range<u64>, bool) -> io::Result<()>) -> io::Result<()> {
    // Readahead by the kernel would turn holes into data.
    code_memory::advise(region.start(), region.len(), Advice::Random);
    let held = region.naming.try_lock().ok().and_then(|mut naming| naming.open_file());
    let Some(file) = held else { return each(region.start()..region.end(), false) };
    let (base, end) = (region.place.base, region.text() + region.len());
    let mut next = region.text();
    while let Some(data) = code_memory::data_in(&file, next..end)? {
        each(base + data.start..base + data.end, true)?;
        next = data.end;
    }
    Ok(())
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

/// Gives a new file to those parts of a private region that are still mappings of the parent's file.
fn adopt_again(mut new: New, old: &Region) -> io::Result<Parts> {
    let pieces = old.mapped().inspect_err(|_| new.naming.remove())?;
    if !old.place.reserved().all(|range| old.owns(&range)) {
        // The host has mapped its own memory beside the code, where the library had reserved address space.
        new.naming.remove();
        return Err(io::ErrorKind::AddrInUse.into());
    }
    let group = if old.is_mapping_group() { old.pages_of_group(&pieces) } else { None };
    let place = Placement { max_len: old.len(), ..old.place.clone() };
    let parts = swap(new, &place, &pieces)?;
    Ok(Parts { kind: old.kind, pages: group.unwrap_or(parts.pages), ..parts })
}

impl Region {
    /// In a forked child: the pages of a mapping group, of which `pieces` are still mapped. The pages join the group at the time
    /// 0, which is earlier than every registration, so all code of the parent counts as code of the group.
    pub(super) fn pages_of_group(&self, pieces: &[Mapping]) -> Option<Pages> {
        let pages = Pages::of_group(self.start(), self.len()).ok()?;
        pieces.iter().for_each(|piece| pages.join(piece.start, piece.end, 0));
        Some(pages)
    }
}

/// Turns a region into a region without a file. The other sinks then report the region's code.
pub(super) fn plain(old: &Region) -> Parts {
    // The memory must become plain memory if possible, because profilers look for names in the parent's file as long as the
    // memory is a mapping of this file.
    let is_whole = || {
        old.mapped().is_ok_and(|pieces| pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>() == old.len())
    };
    let may_be_plain = match old.kind {
        Backing::TwoViews { .. } => false,
        // `release` unmaps the whole range of a region that the library created and that has no file. So the whole range must
        // still belong to the region.
        Backing::Private { adopted, .. } => adopted || is_whole(),
    };
    let is_plain = may_be_plain && old.make_plain().is_ok();
    // Without its own descriptor of the file, the child still recognizes the mappings of the file.
    let mapped = old.naming.try_lock().ok().filter(|_| !is_plain).and_then(|mut naming| match naming.open_file() {
        Some(file) => Some(Naming::nameless(Some(file))),
        None => Naming::lent(&naming),
    });
    Parts {
        place: old.place.clone(),
        kind: old.kind,
        len: old.len(),
        pages: Pages::new(old.start(), old.place.max_len),
        naming: mapped.unwrap_or_else(|| Naming::nameless(None)),
        file: None,
        inherited: None,
    }
}
