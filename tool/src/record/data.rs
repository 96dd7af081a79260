//! The events of a recording: renames mappings, and completes a recording whose perf was killed.
//!
//! The format is described in linux tools/perf/Documentation/perf.data-file-format.txt.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::perf_data::events::{kind, len_behind, mapping, read_event};
use crate::perf_data::{file_header, invalid, u32_at, u64_at, EVENTS, EVENTS_LEN, FEATURES, HEADER};

/// Passes each word of all samples to `found`. Among these words are all code addresses of stacks: instruction pointers, and
/// return addresses on copied stacks.
pub fn words_of_samples(from: &Path, found: &mut dyn FnMut(u64)) -> io::Result<()> {
    let file = crate::open::named(from)?;
    let header = file_header(&file)?;
    let end = u64_at(&header, EVENTS).saturating_add(u64_at(&header, EVENTS_LEN));
    let mut input = BufReader::with_capacity(1 << 18, &file);
    let mut at = input.seek(SeekFrom::Start(u64_at(&header, EVENTS)))?;
    let mut bytes = Vec::new();
    while at < end && read_event(&mut input, &mut bytes)?.is_some() {
        let behind = len_behind(&bytes, false);
        io::copy(&mut input.by_ref().take(behind), &mut io::sink())?;
        at = at.saturating_add(bytes.len() as u64).saturating_add(behind);
        if u32_at(&bytes, 0) == kind::SAMPLE {
            bytes[8..].as_chunks().0.iter().for_each(|word| found(u64::from_ne_bytes(*word)));
        }
    }
    Ok(())
}

/// The new name of a mapping, by its process and its name.
pub type NewName<'a> = &'a dyn Fn(u32, &[u8]) -> Option<Vec<u8>>;

/// Writes a copy of a recording with other names for mappings.
pub fn rename(from: &Path, to: &Path, new: NewName<'_>) -> io::Result<()> {
    let file = crate::open::named(from)?;
    let (mut header, total) = (file_header(&file)?, file.metadata()?.len());
    let (start, len) = (u64_at(&header, EVENTS), u64_at(&header, EVENTS_LEN));
    let end = start.saturating_add(len);
    if start < HEADER as u64 || end > total {
        return invalid("is cut");
    }
    let mut input = BufReader::with_capacity(1 << 18, file);
    let out = File::options().read(true).write(true).create_new(true).open(to)?;
    let mut out = BufWriter::with_capacity(1 << 18, out);
    io::copy(&mut input.by_ref().take(start), &mut out)?;
    let (mut at, mut written, mut bytes) = (start, 0, Vec::new());
    while at < end {
        if read_event(&mut input, &mut bytes)?.is_none() {
            return invalid("has an event that is not whole");
        }
        let behind = len_behind(&bytes, false);
        at = at.saturating_add(bytes.len() as u64).saturating_add(behind);
        let renamed = mapping(&bytes).and_then(|mapped| Some((new(mapped.pid, mapped.name)?, mapped.name_at)));
        if let Some((mut name, place)) = renamed {
            name.resize((name.len() + 1).next_multiple_of(8), 0);
            bytes.splice(place, name);
            let Ok(size) = u16::try_from(bytes.len()) else { return invalid("has too long a name") };
            bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        }
        out.write_all(&bytes)?;
        written += bytes.len() as u64 + behind;
        if io::copy(&mut input.by_ref().take(behind), &mut out)? != behind {
            return invalid("is cut");
        }
    }
    if at != end {
        return invalid("has an event that is not whole");
    }
    // The features: a table of offsets, and the data that it points to.
    let count = header[FEATURES..].iter().map(|byte| byte.count_ones() as usize).sum::<usize>();
    let mut table = vec![0; 16 * count];
    input.read_exact(&mut table)?;
    for entry in table.chunks_exact_mut(16) {
        let place = u64_at(entry, 0).wrapping_sub(len).wrapping_add(written);
        entry[..8].copy_from_slice(&place.to_ne_bytes());
    }
    out.write_all(&table)?;
    io::copy(&mut input, &mut out)?;
    header[EVENTS_LEN..EVENTS_LEN + 8].copy_from_slice(&written.to_ne_bytes());
    let out = out.into_inner().map_err(|error| error.into_error())?;
    out.write_all_at(&header, 0)
}

/// Completes a recording that perf could not complete. All whole events are kept, and no features are present. Returns whether
/// there are any events.
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
    fn names_of_mappings() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-data-").unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let mut behind = vec![0; 48];
        behind[0] = kind::AUXTRACE as u8;
        (behind[6], behind[8]) = (48, 3);
        behind.extend(b"aux");
        let other = mmap2("/lib/libc.so");
        fs::write(&from, recording(&[mmap2("/tmp/jit-7.dump"), behind.clone(), other.clone()])).unwrap();
        let new =
            |pid: u32, name: &[u8]| (pid == 7 && name == b"/tmp/jit-7.dump").then(|| b"/a/longer/path/of/it".to_vec());
        rename(&from, &to, &new).unwrap();
        assert_eq!(fs::read(&to).unwrap(), recording(&[mmap2("/a/longer/path/of/it"), behind, other]));
        assert!(rename(&from, &to, &new).is_err(), "the new file is new");
        // The test cuts the file at every length.
        let whole = fs::read(&from).unwrap();
        for len in 0..whole.len() - 8 {
            fs::write(&from, &whole[..len]).unwrap();
            let _ = fs::remove_file(&to);
            assert!(rename(&from, &to, &new).is_err(), "{len}");
        }
    }

    #[test]
    fn words_of_a_sample() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-data-").unwrap();
        let path = dir.path().join("data");
        let sample = [kind::SAMPLE.into(), 7u64, 9].map(u64::to_ne_bytes).concat();
        let sample = [&sample[..6], &[24, 0], &sample[8..]].concat();
        fs::write(&path, recording(&[mmap2("/tmp/jit-7.dump"), sample, mmap2("/x")])).unwrap();
        let mut words = Vec::new();
        words_of_samples(&path, &mut |word| words.push(word)).unwrap();
        assert_eq!(words, [7, 9]);
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
