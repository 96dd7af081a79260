//! Keeps the records that other runtimes have appended to the jitdump of a killed process. For example, wasmtime appends whole
//! records.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

use crate::format::jitdump::places;
use crate::queue::shared::INDICES_START;

/// Removes the library's own groups after the first `len` bytes of a file, because these groups were not committed. Keeps the
/// first `len` bytes, and all groups of other runtimes. Returns the new length of the file.
///
/// If this call is interrupted, the groups that were kept so far are whole, and the next call finds them again.
pub fn keep_after(file: &File, len: u64) -> io::Result<u64> {
    let mut kept: Vec<Range<u64>> = Vec::new();
    places(
        len..file.metadata()?.len(),
        |bytes, at| file.read_exact_at(bytes, at),
        |place| {
            let end = place.offset + place.head_len as u64 + place.size;
            match kept.last_mut().filter(|last| last.end == place.offset) {
                _ if place.index >= INDICES_START => {}
                Some(last) => last.end = end,
                None => {
                    kept.try_reserve(1)?;
                    kept.push(place.offset..end);
                }
            }
            Ok(())
        },
    )?;
    let mut end = len;
    for range in kept {
        if range.start != end {
            move_down(file, &range, end)?;
        }
        end += range.end - range.start;
    }
    file.set_len(end)?;
    Ok(end)
}

fn move_down(file: &File, range: &Range<u64>, to: u64) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    // With `O_APPEND`, pwrite(2) would write at the end of the file, whatever the offset.
    fcntl_setfl(file, flags - OFlags::APPEND)?;
    let moved = copy_down(file, range, to);
    fcntl_setfl(file, flags)?;
    moved
}

fn copy_down(file: &File, range: &Range<u64>, to: u64) -> io::Result<()> {
    let mut block = [0; 4096];
    let mut at = range.start;
    while at < range.end {
        let len = block.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut block[..len], at)?;
        file.write_all_at(&block[..len], to + (at - range.start))?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::api::code::Lines;
    use crate::format::jitdump::{Group, Header, HEADER_SIZE};
    use crate::sink::test_random::{Random, Seed};

    fn group(index: u64, random: &mut Random) -> Vec<u8> {
        let size = 1 + random.below(9000);
        let (name, lines) = (index.to_string(), Lines::Rows(&[]));
        let group = Group { pid: 1, tid: 1, index, addr: 0x1000, size, name: name.as_bytes(), lines, unwind: None };
        let mut bytes = vec![index as u8; group.fixed_size() + size as usize];
        group.write(1, &mut bytes, size as usize).unwrap().unwrap();
        bytes
    }

    #[test]
    fn groups_of_others_stay() {
        let seed = Seed::new();
        let mut random = Random(seed.0);
        let path = std::env::temp_dir().join(format!("jitsym-others-{}", std::process::id()));
        for _ in 0..100 {
            let header = Header { machine: 62, pid: 1, timestamp: 1, arch_timestamp: false };
            let mut expected = header.to_bytes().to_vec();
            expected.extend(group(INDICES_START, &mut random));
            let committed = expected.len() as u64;
            let mut whole = expected.clone();
            for number in 1..random.below(8) {
                let is_ours = random.below(2) == 0;
                let bytes = group(if is_ours { INDICES_START + number } else { number }, &mut random);
                whole.extend_from_slice(&bytes);
                if !is_ours {
                    expected.extend_from_slice(&bytes);
                }
            }
            // The last group is incomplete.
            let torn = group(100, &mut random);
            whole.extend_from_slice(&torn[..random.below(torn.len() as u64) as usize]);
            std::fs::write(&path, &whole).unwrap();
            let file = File::options().read(true).append(true).open(&path).unwrap();
            assert!(committed > HEADER_SIZE as u64);
            assert_eq!(keep_after(&file, committed).unwrap(), expected.len() as u64);
            assert!(std::fs::read(&path).unwrap() == expected);
            (&file).write_all(b"end").unwrap();
            assert!(std::fs::read(&path).unwrap().ends_with(b"end"), "what comes next is appended");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
