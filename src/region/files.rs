//! Files that regions have had: kept for profiles that have samples of them, up to a bound, and removed in the end if that is asked for.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use super::{lock, Region, Regions};
use crate::sink::region_file::RegionFile;
use crate::status::Status;
use crate::sys::dir::Dir;
use crate::sys::file::{self, Held, Identity};

/// Files of older generations that are kept, and how many bytes they may have together.
const OLD_FILES: usize = 20_000;
const OLD_BYTES: u64 = 256 << 20;

/// A file that is not written to any more.
#[derive(Debug)]
struct Past {
    path: PathBuf,
    identity: Identity,
    bytes: u64,
}

impl Past {
    fn remove(&self) {
        let (Ok(dir), Some(name)) = (Dir::of(&self.path), self.path.file_name()) else { return };
        if dir.identity_of(name).is_ok_and(|found| self.identity.is(&found)) {
            // Nothing can be done about a failure.
            let _ = dir.remove(name);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Files {
    /// Of older generations, and the last ones of regions that are none any more; oldest first.
    old: VecDeque<Past>,
    old_bytes: u64,
}

impl Regions {
    /// Takes note of the file of an older generation. The oldest go if there are too many.
    pub fn keep_old(&self, path: PathBuf, identity: Identity, bytes: u64) {
        let mut settings = lock(&self.settings);
        let files = &mut settings.files;
        files.old.push_back(Past { path, identity, bytes });
        files.old_bytes += bytes;
        while files.old.len() > OLD_FILES || files.old_bytes > OLD_BYTES {
            let Some(oldest) = files.old.pop_front() else { break };
            files.old_bytes -= oldest.bytes;
            oldest.remove();
        }
    }

    /// Takes note of the file of a region that ends. In time there may be many.
    pub(super) fn keep_last(&self, region: &Region) {
        if let Some(Past { path, identity, .. }) = last_of(region) {
            let bytes = std::fs::metadata(&path).map_or(0, |data| data.blocks() * 512);
            self.keep_old(path, identity, bytes);
        }
    }

    /// Removes all files that regions have and have had. What is registered in those that there are goes to the other sinks from
    /// now on.
    pub fn remove_files(&self, status: &Status) {
        let files = std::mem::take(&mut lock(&self.settings).files);
        files.old.iter().for_each(Past::remove);
        for region in self.all() {
            let Some(file) = lock(&region.file).take() else { continue };
            drop(file);
            region.is_unwell.store(true, Ordering::Relaxed);
            status.counters.regions_ended.add(1);
            last_of(region).iter().for_each(Past::remove);
        }
    }
}

impl Region {
    /// Opens its file again, of which a host has closed the descriptor, as daemons do with all.
    pub fn reopen(&self, file: &mut RegionFile) -> io::Result<()> {
        let mut naming = lock(&self.naming);
        let (Some(held), Some(name)) = (&naming.file, naming.path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let dir = match naming.dir.as_ref().filter(|dir| dir.is_open()) {
            Some(dir) => dir.clone(),
            None => Arc::new(Dir::of(&naming.path)?),
        };
        let held = Arc::new(Held::new(file::reopen_to_place(&dir, name, held.identity())?)?);
        file.reopen(held.clone())?;
        (naming.file, naming.dir) = (Some(held), Some(dir));
        Ok(())
    }
}

fn last_of(region: &Region) -> Option<Past> {
    let naming = lock(&region.naming);
    let (Some(_), Some(file)) = (&naming.dir, &naming.file) else { return None };
    Some(Past { path: naming.path.clone(), identity: file.identity(), bytes: 0 })
}
