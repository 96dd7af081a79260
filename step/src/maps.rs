//! What is mapped in a process: `/proc/PID/maps`.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::Tid;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses.
    pub range: Range<u64>,
    /// `r`
    pub readable: bool,
    /// `w`
    pub writable: bool,
    /// `x`
    pub executable: bool,
    /// `s`: what is written there is written to the file.
    pub shared: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Major and minor number, as in the file.
    pub device: String,
    /// 0 without a file.
    pub inode: u64,
    /// The file, or a name in brackets, or nothing. A file that was removed ends with ` (deleted)`.
    pub path: PathBuf,
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let mut rest = line;
        let mut word = || {
            rest = rest.trim_start_matches(' ');
            let (word, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
            rest = after;
            word
        };
        let (start, end) = word().split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let flags = word();
        let has = |flag: char| flags.contains(flag);
        Some(Mapping {
            range: number(start)?..number(end)?,
            readable: has('r'),
            writable: has('w'),
            executable: has('x'),
            shared: has('s'),
            offset: number(word())?,
            device: word().into(),
            inode: word().parse().ok()?,
            path: rest.trim_start_matches(' ').into(),
        })
    }
}

/// All mappings of a process, by their addresses.
pub fn maps(pid: Tid) -> io::Result<Vec<Mapping>> {
    let bytes = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(Mapping::parse).collect())
}

/// The mapping that has an address.
pub fn find(maps: &[Mapping], addr: u64) -> Option<&Mapping> {
    let at = maps.partition_point(|mapping| mapping.range.end <= addr);
    maps.get(at).filter(|mapping| mapping.range.contains(&addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line() {
        let line = "7f00-7f10 r-xs 00001000 00:0f 77                 /dev/shm/a b (deleted)";
        let mapping = Mapping::parse(line).expect("a mapping");
        assert_eq!((mapping.range, mapping.offset, mapping.inode), (0x7f00..0x7f10, 0x1000, 77));
        assert_eq!(mapping.path.to_str(), Some("/dev/shm/a b (deleted)"));
        assert!(mapping.readable && mapping.executable && mapping.shared && !mapping.writable);
        assert_eq!(Mapping::parse("1-2 rw-p 0 00:00 0").expect("a mapping").path.to_str(), Some(""));
        assert_eq!(Mapping::parse("what is this"), None);
    }
}
