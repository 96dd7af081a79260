//! Keeps the perf map's lines that an earlier program of this process wrote, before it executed the present program (`execve`).
//!
//! perf reads the map after the recording, so the map has to name the code of the earlier and of the present program. The
//! earlier program's code is dead.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use super::PerfMap;
use crate::format::name::{clean, lengthen};
use crate::format::perf_map::{lines, push_line, whole_len};
use crate::registry::Registry;
use crate::sys::file;

/// The sink keeps at most this many bytes of the earlier program's lines, from the end of the file.
const MOST: u64 = 16 << 20;

impl PerfMap {
    /// Opens the map that an earlier program of this process has left, and reads its lines. `None` if there is no such map.
    pub(super) fn continue_earlier(&mut self) -> io::Result<Option<File>> {
        let (dir, name) = self.own.place()?;
        let Some(mut file) = file::continue_earlier(dir, name)? else { return Ok(None) };
        let data = file.metadata()?;
        file.seek(SeekFrom::Start(data.len().saturating_sub(MOST)))?;
        let mut text = Vec::new();
        (&file).take(MOST).read_to_end(&mut text)?;
        // The earlier program may have ended in the middle of a write, and left an incomplete last line.
        let torn = text.len() - whole_len(&text);
        let len = data.len() - torn as u64;
        file.set_len(len)?;
        text.truncate(text.len() - torn);
        self.marks.note(&text, len);
        if len > MOST {
            // The text may begin in the middle of a line.
            let start = text.iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| at + 1);
            text.drain(..start);
        }
        // A rewrite removes the lines that the sink does not know, and gives the file the configured mode.
        self.stale |= len > MOST || data.mode() & 0o777 & !self.own.mode != 0;
        self.earlier = text;
        Ok(Some(file))
    }

    /// Adds the earlier program's code to the registry, unless newer code is in its address range.
    pub(super) fn learn_earlier(&mut self, registry: &mut Registry) {
        let text = std::mem::take(&mut self.earlier);
        let mut as_ours = Vec::new();
        if let Some((start, size, name)) = lines(&text).next() {
            push_line(&mut as_ours, self.dialect, start, size, name);
        }
        let mut count = 0;
        // Of two lines for one address, the later line is newer.
        for (start, size, name) in lines(&text).rev() {
            count += 1;
            let cleaned = lengthen(clean(name));
            self.stale |= cleaned != name || !registry.insert_dead(start, size, &cleaned);
        }
        // The earlier program may have written its lines in another dialect of the map. Another runtime in the earlier program
        // may have written names with newlines.
        let all = text.iter().filter(|&&byte| byte == b'\n').count();
        self.stale |= count < all || !text.starts_with(&as_ours);
    }
}
