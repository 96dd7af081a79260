//! Rewrites the jitdump with only the groups of live code. The new file replaces the old file.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use super::backlog::Places;
use super::Jitdump;
use crate::api::options::Sinks;
use crate::format::jitdump::HEADER_SIZE;
use crate::queue::spool::layout::FileState;
use crate::sink::Announce;
use crate::sys::file;
use crate::sys::marker::Marker;

impl Jitdump {
    /// The maximal total size of the groups that are passed to `rewrite`. This size is below the file's limit, so that no
    /// further rewrite is needed soon.
    pub(super) fn rewrite_most(&self) -> u64 {
        (self.most / 4 * 3).saturating_sub(HEADER_SIZE as u64)
    }

    /// Rewrites the file with only these groups. Each group is given by its position in the order of all groups, and its
    /// length. The new file replaces the old file, or gets a different name if another library also writes to the old file.
    /// Calls `announce` before the new file takes the old file's name. Empties the backlog. Returns how many groups of the
    /// backlog are not in the new file.
    pub(super) fn rewrite(&mut self, groups: &[(u64, usize)], announce: Announce<'_>) -> io::Result<usize> {
        let (name, was_cut) = (self.contents.own.name().to_owned(), self.is_cut());
        let elsewhere = self.is_taken(was_cut);
        let (fresh_name, fresh) = match elsewhere {
            true => self.make().map(|file| (self.contents.own.name().to_owned(), file))?,
            false => self.contents.own.make_replacement()?,
        };
        let replaced = self.fill(&fresh, groups).and_then(|(places, len)| {
            let identity = file::look_at(&fresh)?;
            announce(Sinks::JITDUMP, FileState { identity, len });
            // Another library may have opened the old file while this sink wrote the groups.
            if !elsewhere && self.is_taken(!was_cut && self.is_cut()) {
                return Err(io::Error::new(file::TAKEN, "is written by another library in this process by now"));
            }
            let (marker, ours) = (Marker::new(&fresh)?, self.contents.own.identity);
            let in_place = match elsewhere {
                true => Ok(()),
                false => {
                    let place = self.contents.own.place();
                    place.and_then(|(dir, name)| file::put_in_place(dir, &fresh_name, name, ours))
                }
            };
            if let Err(error) = in_place {
                marker.end();
                return Err(error);
            }
            Ok((places, len, identity, marker))
        });
        let (places, len, identity, marker) = match replaced {
            Ok(replaced) => replaced,
            Err(error) => {
                self.contents.own.remove_replacement(&fresh_name);
                self.contents.own.set_name(&name);
                return Err(error);
            }
        };
        self.contents.backlog.retain(|order| places.get(order).is_none());
        let forgotten = self.contents.backlog.retain(|_| false);
        self.lost += groups.iter().filter(|&&(order, _)| places.get(order).is_none()).count() as u64;
        self.contents.own.set_marker(Some(marker));
        (self.contents.places, self.len, self.contents.own.identity) = (places, len, Some(identity));
        (self.reserved, self.torn, self.spoiled) = (0, false, false);
        self.contents.hold(fresh)?;
        self.contents.show(self.len);
        Ok(forgotten)
    }

    /// Writes the header and all groups that can be read. Returns where these groups are in the new file, and the length of the
    /// new file.
    fn fill(&self, mut fresh: &File, groups: &[(u64, usize)]) -> io::Result<(Places, u64)> {
        const BUFFER: usize = 256 * 1024;
        let mut buffer = Vec::new();
        buffer.try_reserve(BUFFER)?;
        buffer.extend_from_slice(&self.header);
        let (mut places, mut len) = (Places::default(), HEADER_SIZE as u64);
        let old = self.contents.own.held()?;
        let old_len =
            old.checked_len().ok().filter(|(file, _)| self.is_ours(file)).map_or(0, |(_, len)| len.min(self.len));
        for &(order, size) in groups {
            if buffer.len() + size > BUFFER {
                self.status.aside(|| fresh.write_all(&buffer))?;
                buffer.clear();
            }
            match (self.contents.places.get(order), self.contents.backlog.get(order)) {
                (Some(offset), _) if offset + size as u64 <= old_len => {
                    let at = buffer.len();
                    buffer.try_reserve(size)?;
                    buffer.resize(at + size, 0);
                    if old.read_exact_at(&mut buffer[at..], offset).is_err() {
                        buffer.truncate(at);
                        continue;
                    }
                }
                (_, Some(group)) => {
                    buffer.try_reserve(size)?;
                    buffer.extend_from_slice(group);
                }
                _ => continue,
            }
            places.set(order, size as u64, len);
            len += size as u64;
        }
        self.status.aside(|| fresh.write_all(&buffer))?;
        Ok((places, len))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::file_names::FileKind;
    use crate::queue::status::Status;
    use crate::sys::clock::Clock;

    /// Another library opens the old file as if the file were new, while the replacement is being written.
    #[test]
    fn a_file_that_is_taken_meanwhile_is_not_replaced() {
        const PID: u32 = 4_000_000_001;
        let dir = std::env::temp_dir().join(format!("jitsym-rewrite-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let name_of = |zeros| FileKind::Jitdump { zeros }.name(PID);
        let path = dir.join(name_of(0));
        let status = Arc::new(Status::new(PID, Clock::Monotonic, Arc::default()));
        let mut dump = Jitdump::at(path.clone(), 0o600, status);
        dump.open_file().unwrap();
        let (group, order) = ([7; 100], dump.contents.next);
        dump.put(&[&group], &[group.len()]);
        let mut other = None;
        for (attempt, name) in [(0, name_of(0)), (1, name_of(1))] {
            let other = std::cell::RefCell::new(&mut other);
            let rewritten = dump.rewrite(&[(order, group.len())], &|_, _| {
                other.borrow_mut().get_or_insert_with(|| File::create(&path).unwrap());
            });
            assert_eq!((rewritten.is_ok(), dump.contents.own.name()), (attempt == 1, name.as_ref()), "{rewritten:?}");
        }
        other.unwrap().write_all(b"somebody's").unwrap();
        let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.count(), 2);
        assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
