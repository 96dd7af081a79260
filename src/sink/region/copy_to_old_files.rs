//! Copies the contents of a region's file to a file that gets the names of older epochs. The writer does this for each split
//! (see `epoch`).

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;

use super::file::RegionFile;
use super::naming::Archive;
use super::sink::RegionSink;
use super::state::Region;
use crate::registry::{Home, Registry};
use crate::sys::file;
use crate::sys::file::Identity;
use crate::sys::held_dir::Dir;

/// If a region has at most this length, its live code is copied to the files of older epochs, for `perf annotate`.
const COPIED_MOST: u64 = 256 << 10;

impl RegionSink {
    /// Handles the waiting splits until `Region::next_archive` returns `None`. The function is inlined, because the writer
    /// calls it for each record, and usually no split waits.
    #[inline(always)]
    pub(super) fn close_all(
        &mut self,
        registry: &mut Registry,
        region: &'static Region,
        before: u64,
        even_undue: bool,
    ) {
        while region.is_archiving() {
            let Some(split) = region.next_archive(before, even_undue) else { return };
            self.archive_epochs(registry, region, &split);
        }
    }

    /// Copies the contents of a region's file to a file with the names of older epochs. The region's file also keeps the
    /// contents, because profilers must find the names of dead code until other code replaces the dead code.
    fn archive_epochs(&mut self, registry: &mut Registry, region: &'static Region, split: &Archive) {
        let mut guard = region.opened();
        let Some(file) = guard.as_mut() else { return };
        // A fork need not wait for the copy, because the registry does not change during the copy.
        let result = self.status.aside(|| self.put_aside(registry, region, file, split.first));
        registry.forget_dead_in_regions(region.start(), region.end());
        file.set_begin(split.begin);
        // The file is rewritten even if it wastes only a little room, because each copy of the file contains all its tables,
        // and all copies share the room for old files.
        if result.is_ok() && split.is_clean && file.is_wasteful(125, 64) {
            Self::write_anew(registry, region, file);
        }
        drop(guard);
        if let Err(error) = result {
            self.report("write an older epoch of", region, &error);
        }
    }

    /// Writes the contents of the file to a copy, which gets the names of the epochs before `first`.
    fn put_aside(&self, registry: &Registry, region: &Region, file: &mut RegionFile, first: u32) -> io::Result<()> {
        let mut naming = region.naming();
        let (names, own, path) = (naming.take_names(first), naming.named(), naming.path.clone());
        // The lock of `naming` is released before the copy, because a thread of the host may wait for the lock.
        drop(naming);
        own.ok_or(io::ErrorKind::NotFound)?;
        let dir = Dir::of(&path)?;
        let mut result = self.copy_to(registry, region, file, &dir, &names, own);
        // If an older name still belongs to the present file, the name is removed, because profilers would find newer code
        // under the older name.
        let is_own = |name: &&OsString| dir.identity_of(name).is_ok_and(|found| own.is_some_and(|own| own.is(&found)));
        for name in names.iter().filter(is_own) {
            if let Err(error) = dir.remove(name) {
                result = Err(error);
            }
        }
        result
    }

    /// Writes the contents of the file to a copy, which takes over `names`. At any time, each of these names belongs either to
    /// the file or to the complete copy.
    fn copy_to(
        &self,
        registry: &Registry,
        region: &Region,
        file: &mut RegionFile,
        dir: &Dir,
        names: &[OsString],
        own: Option<Identity>,
    ) -> io::Result<()> {
        let Some((name, others)) = names.split_first() else { return Ok(()) };
        let naming = region.naming();
        let (path, fresh) = (naming.path.clone(), naming.name_of_copy());
        drop(naming);
        let to = file::claim(dir, &fresh, self.regions.mode(), file::ANYWHERE)?;
        let (written, identity) = (to.try_clone()?, file::look_at(&to)?);
        // The copy does not need the bytes of live code, because newer files have these bytes too. The bytes of dead code are
        // copied only if the mapping is private. In a shared mapping, the host may already have written other code over the
        // dead code, and its writes change the file.
        let start = region.start();
        let (is_private, with_live) =
            (region.is_private(), region.len() <= COPIED_MOST && self.regions.settings().files.are_few());
        let has_bytes = |offset| match registry.id_at(Home::Region, start + offset) {
            Some(_) => with_live,
            None => is_private,
        };
        file.snapshot(to, has_bytes, region.build_id())
            .and_then(|()| file::put_in_place(dir, &fresh, name, own))
            .inspect_err(|_| _ = dir.remove(&fresh))?;
        let bytes = written.metadata().map_or(0, |data| data.blocks() * 512);
        let pause = self.regions.pause_after(bytes, self.status.clock.now());
        region.pause.store(pause, Ordering::Relaxed);
        region.copy_bytes.store(bytes, Ordering::Relaxed);
        self.status.counters.region_bytes.add(bytes);
        self.regions.keep_old(path.with_file_name(name), identity, bytes);
        for other in others {
            let linked = dir.link(name, &fresh).and_then(|()| file::put_in_place(dir, &fresh, other, own));
            match linked {
                Ok(()) => self.regions.keep_old(path.with_file_name(other), identity, 0),
                Err(_) => drop(dir.remove(&fresh)),
            }
        }
        Ok(())
    }
}
