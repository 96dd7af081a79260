//! Keeps the lines that an earlier program of this process has written to the map, before it executed the present program.
//!
//! perf reads the map after the recording, so one map has to name the code of both programs. The earlier program's code is dead.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use super::PerfMap;
use crate::format::perf_map::{lines, push_line};
use crate::registry::Registry;
use crate::sys::file;

/// The sink remembers lines of at most this many bytes, which are the last bytes of the file.
const MOST: u64 = 16 << 20;

impl PerfMap {
    /// Opens the map that an earlier program of this process has left, and reads its lines. `None` if there is no such map.
    pub(super) fn continue_earlier(&mut self) -> io::Result<Option<File>> {
        let (dir, name) = self.own.place()?;
        let Some(mut file) = file::continue_earlier(dir, name)? else { return Ok(None) };
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(MOST)))?;
        let mut text = Vec::new();
        (&file).take(MOST).read_to_end(&mut text)?;
        if len > MOST {
            // The first line may be cut.
            let start = text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| at + 1);
            text.drain(..start);
        }
        // A rewrite removes all lines that the sink does not know.
        self.stale |= len > MOST || !text.is_empty() && !text.ends_with(b"\n");
        self.earlier = text;
        Ok(Some(file))
    }

    /// Adds the earlier program's code to the registry, unless newer code is in its address range.
    pub(super) fn learn_earlier(&mut self, registry: &mut Registry) {
        let text = std::mem::take(&mut self.earlier);
        let (mut as_ours, mut count) = (Vec::new(), 0);
        for (start, size, name) in lines(&text) {
            count += 1;
            if as_ours.is_empty() {
                push_line(&mut as_ours, self.dialect, start, size, name);
            }
            self.stale |= !registry.insert_dead(start, size, name);
            let forgotten = registry.forget_oldest();
            self.stale |= forgotten > 0;
            self.status.counters.map_forgotten.add(forgotten as u64);
        }
        // The earlier program may have written another dialect, and another runtime in it may have written names with newlines.
        let all = text.iter().filter(|&&byte| byte == b'\n').count();
        self.stale |= count < all || !text.starts_with(&as_ours);
    }
}
