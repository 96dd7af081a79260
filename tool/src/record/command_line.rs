//! Finds the recorded command in the command line of perf that a recording contains.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::quoted;
use crate::open;
use crate::perf_data::{EVENTS, EVENTS_LEN, FEATURES};

const CMDLINE: u32 = 11;
/// The maximum length of a command line that is read.
const LENGTH: u64 = 4 << 20;

/// Options of `perf record` whose value is the next word.
const SHORT: &str = "eptrCcoFmGDukPb";
const LONG: &[&str] = &[
    "--event",
    "--filter",
    "--realtime",
    "--cpu",
    "--count",
    "--output",
    "--freq",
    "--mmap-pages",
    "--call-graph",
    "--cgroup",
    "--delay",
    "--uid",
    "--clockid",
    "--proc-map-timeout",
    "--switch-max-files",
    "--max-size",
    "--control",
    "--affinity",
];

/// The command, quoted for a shell. `None` if the recording does not contain the command, or was made of a running process.
pub fn command(data: &Path) -> Option<String> {
    let mut found = words(data).ok()?;
    if let Some(before) = source_of(&found) {
        found = words(&data.with_file_name(before)).ok()?;
    }
    let words = command_of(&found)?;
    Some(shown(words.iter().map(String::as_str)))
}

/// Words, quoted for a shell.
pub fn shown<'w>(words: impl Iterator<Item = &'w str>) -> String {
    let words: Vec<String> = words.map(|word| quoted(Path::new(word))).collect();
    crate::text::printable(words.join(" ").as_bytes()).to_string()
}

fn u64_at(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes))
}

/// The offset, in the header, of the entry with the range of the command line.
fn entry(file: &File) -> io::Result<u64> {
    let features = u64_at(file, FEATURES as u64)?;
    if features >> CMDLINE & 1 == 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    let before = (features & ((1 << CMDLINE) - 1)).count_ones();
    let table = u64_at(file, EVENTS as u64)?.saturating_add(u64_at(file, EVENTS_LEN as u64)?);
    Ok(table.saturating_add(16 * u64::from(before)))
}

/// The command line as stored in the file.
fn section(file: &File) -> io::Result<Vec<u8>> {
    let entry = entry(file)?;
    let (at, length) = (u64_at(file, entry)?, u64_at(file, entry + 8)?);
    if length > LENGTH {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// The words of perf's own command line.
fn words(data: &Path) -> io::Result<Vec<String>> {
    let bytes = section(&open::named(data)?)?;
    Ok(words_of(&bytes).unwrap_or_default())
}

/// Parses the section: the number of words, then for each word its length and the word, padded with zeros.
fn words_of(bytes: &[u8]) -> Option<Vec<String>> {
    let (count, mut rest) = bytes.split_first_chunk()?;
    let mut words = Vec::new();
    for _ in 0..u32::from_ne_bytes(*count) {
        let (length, word) = rest.split_first_chunk()?;
        let (word, after) = word.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        let end = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
        words.push(String::from_utf8_lossy(&word[..end]).into_owned());
        rest = after;
    }
    Some(words)
}

/// The recording that was the input of `perf inject`.
fn source_of(words: &[String]) -> Option<&str> {
    let at = words.iter().position(|word| word == "-i")?;
    words.get(at + 1).filter(|_| words[1] == "inject").map(String::as_str)
}

/// The words after the options of `perf record`.
fn command_of(words: &[String]) -> Option<&[String]> {
    if words.get(1).is_none_or(|word| word != "record") {
        return None;
    }
    let mut at = 2;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        let is_short = !word.starts_with("--");
        if word == "--" {
            at += 1;
            break;
        }
        let is_of_process = ["--pid", "--tid"].iter().any(|long| word.starts_with(long));
        if is_of_process || is_short && (word.starts_with("-p") || word.starts_with("-t")) {
            return None;
        }
        let last = word.chars().last().unwrap_or('-');
        // `-ag` is two flags. `-F99` includes its value.
        let takes = if is_short {
            SHORT.contains(last) && word[1..].chars().all(char::is_alphabetic) && !has_value(&word[1..])
        } else {
            LONG.contains(&&**word)
        };
        at += 1 + usize::from(takes);
    }
    words.get(at..).filter(|command| !command.is_empty())
}

/// Whether a letter before the last letter takes the rest of the word as its value.
fn has_value(letters: &str) -> bool {
    let last = letters.chars().count().saturating_sub(1);
    letters.chars().take(last).any(|letter| SHORT.contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        command_of(&words).map(|words| words.join(" "))
    }

    #[test]
    fn the_command_comes_after_the_options() {
        for line in [
            "perf record vm x",
            "/usr/bin/perf record -q -e cpu-clock -o perf.data -k 1 --call-graph dwarf vm x",
            "perf record -k1 -F99 -ag --call-graph=fp vm x",
            "perf record -aF 99 -ecpu-clock -- vm x",
        ] {
            assert_eq!(of(line).as_deref(), Some("vm x"), "{line}");
        }
        assert_eq!(of("perf record -- vm -- x").as_deref(), Some("vm -- x"));
        for line in ["perf record -p 7 sleep 1", "perf record --pid=7", "perf record -a", "perf inject --jit", "perf"] {
            assert_eq!(of(line), None, "{line}");
        }
    }

    #[test]
    fn words_are_counted() {
        let mut bytes = [2u32, 4].map(u32::to_ne_bytes).concat();
        bytes.extend(b"vm\0\0\x04\0\0\0x\0\0\0");
        #[cfg(target_endian = "little")]
        assert_eq!(words_of(&bytes).unwrap(), ["vm", "x"]);
        for len in 0..bytes.len() {
            assert_eq!(words_of(&bytes[..len]), None);
        }
    }

    #[test]
    fn what_is_no_recording_has_no_command() {
        assert_eq!(command(Path::new("/nowhere")), None);
        assert_eq!(command(Path::new("/etc/passwd")), None);
        assert_eq!(shown(["a b", "c"].into_iter()), "'a b' c");
    }
}
