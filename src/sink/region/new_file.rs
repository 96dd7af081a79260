//! Creates a file for a region, under an unused name.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::addresses::Placement;
use super::file::RegionFile;
use super::file_names::file_name;
use super::lost_pages::Pages;
use super::naming::Naming;
use super::regions::Regions;
use super::state::{Backing, Parts};
use crate::queue::status::Status;
use crate::sink::describe;
use crate::sys::file::{self, Held};
use crate::sys::held_dir::Dir;
use crate::sys::privileges;

/// A new file that does not belong to a region yet.
pub(super) struct New {
    pub naming: Naming,
    file: Arc<Held>,
}

impl New {
    /// Turns the new file into the file of a region. `put` maps the file over the memory of the region. If `put` fails, the
    /// name of the file is removed.
    pub fn put_in_place(
        self,
        place: Placement,
        len: u64,
        put: impl FnOnce(&Naming, &Arc<Held>) -> io::Result<(Backing, RegionFile)>,
    ) -> io::Result<Parts> {
        let New { mut naming, file } = self;
        let (kind, file) = put(&naming, &file).inspect_err(|_| naming.remove())?;
        let pages = Pages::new(place.start, place.max_len);
        Ok(Parts { place, kind, len, pages, naming, file: Some(file), inherited: None })
    }
}

impl Regions {
    /// Creates a file. If `at_code` is true, the loaded segment of the file begins at the code.
    pub(super) fn new_file(&self, status: &Status, at_code: bool) -> Result<New, String> {
        const ATTEMPTS: u32 = 1000;
        if privileges::are_more() {
            return Err(format!("a region has no file: {}", privileges::WHY_NO_FILE));
        }
        let (dir_path, mode) = {
            let settings = self.settings();
            (settings.dir.clone(), settings.mode)
        };
        // The settings are not locked here, so that no other thread has to wait for the disk.
        let dir = self.open_dir(&dir_path).map_err(|error| describe("open", &dir_path, &error))?;
        let mut attempt = 0;
        loop {
            let number = {
                let mut settings = self.settings();
                settings.next_number += 1;
                settings.next_number - 1
            };
            let name = file_name((status.pid, number), 0, at_code);
            let path = dir_path.join(&name);
            match file::claim(&dir, &name, mode, file::ANYWHERE) {
                Ok(file) => {
                    let file = Held::new(file).map_err(|error| describe("open", &path, &error))?;
                    let file = Arc::new(file);
                    let naming = Naming::new(dir, path, file.clone(), (status.pid, number));
                    return Ok(New { naming, file });
                }
                Err(error) if attempt < ATTEMPTS && file::is_anothers(&error) => attempt += 1,
                Err(error) => return Err(describe("create", &path, &error)),
            }
        }
    }

    /// Opens the directory. To save descriptors of the host, regions share one descriptor as long as the path leads to the same
    /// directory.
    fn open_dir(&self, path: &Path) -> io::Result<Arc<Dir>> {
        let now = Dir::open(path)?;
        let last = self.settings().last_dir.clone();
        match last {
            Some(last) if last.is(&now) => Ok(last),
            _ => Ok(self.settings().last_dir.insert(Arc::new(now)).clone()),
        }
    }
}
