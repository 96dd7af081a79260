//! Handles a perf map to which other writers in this process write too. All writers of a process use the same file, because
//! profilers read only one map of a process.
//!
//! If the sink replaced a shared file, the other writers would continue to write to the replaced file. So the sink only appends
//! whole lines to a shared file, and never replaces the file or removes lines. Outdated lines stay in the file, so two lines
//! may have the same address.

use std::ffi::OsStr;
use std::io::{self, IoSlice, Seek};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::known_contents::{holds, Marks, REWRITE_INTERVAL, REWRITE_SHARE};
use super::PerfMap;
use crate::format::perf_map::push_line;
use crate::queue::status::Status;
use crate::registry::Registry;
use crate::sys::file;
use crate::sys::other_writers;
use crate::sys::sort::sort;

impl PerfMap {
    /// Sets `shared` if other libraries write to the file. Examines the descriptors of the whole process only if the file is to
    /// be rewritten or has changed. Returns true only if the file seems unchanged since this sink last wrote to it.
    pub(super) fn look_around(&mut self, now: bool) -> io::Result<bool> {
        let Some(file) = self.own.held().ok().filter(|_| now || self.stale || !self.pending.is_empty()) else {
            return Ok(false);
        };
        let Ok((checked, len)) = file.checked_len() else { return Ok(false) };
        if len == self.len && !(self.shared || self.stale || now) {
            return Ok(true);
        }
        if file::is_removed(checked) {
            return self.follow().map(|()| false);
        }
        let is_as_left = len >= self.len && self.marks.end(checked);
        let identity = file.identity();
        if is_as_left && (self.shared || len == self.len && !self.stale) {
            return Ok(false);
        }
        let foreign = len > self.len || len > 0 && !self.marks.begin(checked);
        let comes = || {
            // If the file was truncated, another library may be about to open it for writing. So the sink watches a truncated
            // file for a while before it replaces the file.
            let is_due = now || self.stale && Instant::now() >= self.not_before;
            let is_cut = is_due && len < self.len;
            self.status.aside(|| other_writers::writes_or_will(identity, Some(checked), is_cut))
        };
        if self.shared || !self.dead && (foreign || comes()) {
            other_writers::make_appending(identity, checked);
            (self.shared, self.stale) = (true, true);
        }
        Ok(false)
    }

    /// Looks for a new file after the sink's file was removed. If another writer in this process uses a new file with the same
    /// name, the sink opens the new file and appends to it too.
    fn follow(&mut self) -> io::Result<()> {
        let (dir, name) = self.own.place()?;
        let joined = match dir.identity_of(name) {
            Ok(found) if other_writers::uses(dir, name, found) => Some(file::join(dir, name)?),
            _ => None,
        };
        (self.shared, self.stale) = (joined.is_some(), true);
        self.marks = Marks::default();
        if let Some(file) = joined {
            self.len = self.own.hold(file)?;
        }
        Ok(())
    }

    /// Gives the rewritten file the map's name. If other writers use the old file, the old file keeps the map's name. Returns
    /// whether the rewritten file has the map's name now.
    pub(super) fn put_in_place(&mut self, fresh: &OsStr) -> io::Result<bool> {
        let ours = self.own.identity;
        let (dir, name) = self.own.place()?;
        let is_ours = dir.identity_of(name).is_ok_and(|found| ours.is_some_and(|ours| ours.is(&found)));
        if !is_ours || dir.exchange(fresh, name).is_err() {
            return file::put_in_place(dir, fresh, name, ours).map(|()| true);
        }
        // From here on nobody can open the old file by the map's name, so the old file gets no more writers.
        let (len, dead) = (self.len, self.dead);
        let old = self.own.held().ok().and_then(|file| Some((file.checked_len().ok()?, file.identity())));
        let in_company = !dead
            && old.is_some_and(|((file, now), identity)| now > len || other_writers::writes(identity, Some(file)));
        let (dir, name) = self.own.place()?;
        if !in_company {
            // A failure to remove the old file is ignored, because the new file is in place. After a failure, the old file has
            // the name `fresh`. The next rewrite replaces a file with this name, and `jitsym clean` knows the name.
            let _ = dir.remove(fresh);
            return Ok(true);
        }
        let is_back = dir.exchange(fresh, name).is_ok() || dir.rename(fresh, name).is_ok();
        self.shared |= is_back;
        // If the old file cannot get the map's name back, the new file keeps this name. The old file is not removed, because
        // other writers still write to it.
        Ok(!is_back)
    }

    /// Appends the lines that the file lacks.
    pub(super) fn write_shared(&mut self, registry: &Registry, now: bool, status: &Status) -> io::Result<()> {
        if self.stale && (now || Instant::now() >= self.not_before) {
            let begin = Instant::now();
            self.pending = self.missing(registry)?;
            (self.stale, self.lacks_inherited) = (false, false);
            self.not_before = Instant::now() + (begin.elapsed() * REWRITE_SHARE).max(REWRITE_INTERVAL);
        }
        let (mut file, len) = self.own.held()?.checked_len()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        if len + self.pending.len() as u64 > self.most {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "is as long as it may be, and written by others too",
            ));
        }
        if len > 0 && !holds(file, len - 1, b"\n") {
            if !self.dead {
                return Err(io::Error::new(io::ErrorKind::WouldBlock, "ends within a line of another library"));
            }
            self.pending.insert(0, b'\n');
        }
        let (written, result) = status.aside(|| file::append(file, &mut [IoSlice::new(&self.pending)]));
        let end = file.stream_position()?;
        if let Err(error) = result {
            // If a part of the text was written, this part is cut off, unless another writer has appended to the file since.
            if written > 0 && file::identity_and_len(file)?.1 == end {
                file.set_len(end - written)?;
            }
            return Err(error);
        }
        status.counters.map_bytes.add(written);
        status.counters.map_omitted.set(0);
        self.omits = false;
        self.marks.note(&self.pending, end);
        self.len = end;
        self.pending.clear();
        Ok(())
    }

    /// All lines of known code that are missing from the file.
    fn missing(&self, registry: &Registry) -> io::Result<Vec<u8>> {
        let (file, len) = self.own.held()?.checked_len()?;
        let mut there = Vec::new();
        there.try_reserve_exact(len as usize)?;
        there.resize(len as usize, 0);
        file.read_exact_at(&mut there, 0)?;
        let mut lines: Vec<&[u8]> = Vec::new();
        lines.try_reserve_exact(there.iter().filter(|&&byte| byte == b'\n').count() + 1)?;
        lines.extend(there.split_inclusive(|&byte| byte == b'\n'));
        sort(&mut lines);
        let (mut text, mut line) = (Vec::new(), Vec::new());
        for (start, size, name) in registry.spans() {
            line.clear();
            push_line(&mut line, self.dialect, start, size, name);
            if lines.binary_search(&&line[..]).is_err() {
                text.try_reserve(line.len())?;
                text.extend_from_slice(&line);
            }
        }
        Ok(text)
    }
}
