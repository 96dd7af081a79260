//! Completes a recording whose perf was killed.
//!
//! The format is described in linux tools/perf/Documentation/perf.data-file-format.txt.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::perf_data::events::{len_behind, read_event};
use crate::perf_data::{file_header, invalid, u64_at, EVENTS, EVENTS_LEN, FEATURES, HEADER};

/// Completes a recording that perf could not complete. All whole events are kept, and the recording has no features. Returns
/// whether there are any events.
pub fn complete(path: &Path) -> io::Result<bool> {
    let file = File::options().read(true).write(true).open(path)?;
    let (mut header, total) = (file_header(&file)?, file.metadata()?.len());
    let start = u64_at(&header, EVENTS);
    if start < HEADER as u64 || u64_at(&header, EVENTS_LEN) != 0 {
        return invalid("is no recording that was begun");
    }
    let mut input = BufReader::with_capacity(1 << 18, &file);
    input.seek(SeekFrom::Start(start))?;
    let (mut end, mut bytes) = (start, Vec::new());
    while read_event(&mut input, &mut bytes)?.is_some() {
        let behind = len_behind(&bytes, false);
        let next = end.saturating_add(bytes.len() as u64).saturating_add(behind);
        if next > total {
            break;
        }
        end = next;
        io::copy(&mut input.by_ref().take(behind), &mut io::sink())?;
    }
    if end == start {
        return Ok(false);
    }
    file.set_len(end)?;
    header[EVENTS_LEN..EVENTS_LEN + 8].copy_from_slice(&(end - start).to_ne_bytes());
    header[FEATURES..].fill(0);
    file.write_all_at(&header, 0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PrivateDir;
    use std::fs;

    const MAGIC: &[u8] = b"PERFILE2";

    fn mmap2(name: &str) -> Vec<u8> {
        let mut event = vec![0; 72];
        event[0] = 10;
        event[8] = 7;
        event.extend(name.bytes());
        event.resize((event.len() + 1).next_multiple_of(8), 0);
        // Each event ends with the thread and the time.
        event.extend([0xee; 16]);
        event[6] = event.len() as u8;
        event
    }

    /// A recording with two features after the events.
    fn recording(events: &[Vec<u8>]) -> Vec<u8> {
        let events = events.concat();
        let mut file = MAGIC.to_vec();
        file.resize(HEADER, 0);
        file[FEATURES] = 3;
        let end = (HEADER + events.len()) as u64;
        file[EVENTS..EVENTS + 8].copy_from_slice(&(HEADER as u64).to_ne_bytes());
        file[EVENTS_LEN..EVENTS_LEN + 8].copy_from_slice(&(events.len() as u64).to_ne_bytes());
        file.extend(events);
        file.extend([end + 32, 4, end + 36, 4].map(u64::to_ne_bytes).concat());
        file.extend(b"one.two.");
        file
    }

    #[test]
    fn what_was_not_completed() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-data-").unwrap();
        let path = dir.path().join("data");
        let events = [mmap2("/a"), mmap2("/bcd")];
        let mut file = recording(&events);
        file.truncate(HEADER + events.concat().len());
        file[EVENTS_LEN..EVENTS_LEN + 8].fill(0);
        for cut in [0, 1, events[1].len() - 1, events[1].len()] {
            fs::write(&path, &file[..file.len() - cut]).unwrap();
            assert!(complete(&path).unwrap());
            let mut expected = recording(&events[..if cut == 0 { 2 } else { 1 }]);
            expected.truncate(expected.len() - 40);
            expected[FEATURES] = 0;
            assert_eq!(fs::read(&path).unwrap(), expected, "{cut}");
            assert!(complete(&path).is_err(), "it is complete");
        }
        fs::write(&path, &file[..HEADER]).unwrap();
        assert!(!complete(&path).unwrap(), "there is no event");
    }
}
