//! Makes the texts about decisions, failures and refused calls, for `JITSYM_DEBUG`, `jitsym_last_error` and the program
//! `jitsym`.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::{self, parse_sinks, parse_size, BRIDGE_WORD, SINK_WORDS_ON};
use super::process::{self, Process};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, DumpDir, Sinks};
use crate::queue::status::Status;
use crate::sink::KINDS;
use crate::sys::{debug, last_error};

/// The kind of values that an environment variable takes.
enum Takes {
    Sinks,
    Switch,
    Directory,
    File,
    Bytes,
    Words(&'static [&'static str]),
    Anything,
}

/// `docs/conventions.md` explains these variables.
const VARIABLES: [(&str, Takes); 20] = [
    ("JITSYM", Takes::Sinks),
    ("JITSYM_ADOPT", Takes::Switch),
    ("JITSYM_DEBUG", Takes::Anything),
    ("JITSYM_DIR", Takes::Directory),
    ("JITSYM_FORK", Takes::Words(&["now", "late", "off", "on", "0", "1"])),
    ("JITSYM_GDB", Takes::Switch),
    ("JITSYM_JITDUMP_INLINES", Takes::Switch),
    ("JITSYM_JITDUMP_MAX", Takes::Bytes),
    ("JITSYM_LATE", Takes::Words(&["off", "on", "remember", "0", "1"])),
    ("JITSYM_LIB", Takes::File),
    ("JITSYM_MAP_MAX", Takes::Bytes),
    ("JITSYM_RECOVER", Takes::Switch),
    ("JITSYM_REMOVE", Takes::Switch),
    ("JITSYM_SPOOL", Takes::Switch),
    ("JITSYM_SPOOL_DIR", Takes::Directory),
    ("JITSYM_THREADS", Takes::Switch),
    ("JITSYM_UNWIND", Takes::Switch),
    ("JITSYM_VALGRIND", Takes::Switch),
    ("JITDUMPDIR", Takes::Directory),
    ("JITDUMP_USE_ARCH_TIMESTAMP", Takes::Switch),
];

/// Describes a mistake in a variable's name or value. `None` if there is no mistake, or if the variable is not for this
/// library.
pub fn doubt(name: &OsStr, value: &OsStr) -> Option<String> {
    let doubt = if value.is_empty() { None } else { doubt_of(name, value) };
    doubt.map(|doubt| format!("{}={}: {doubt}", name.display(), value.display()))
}

/// Whether this value of `JITSYM` selects no sink.
pub fn turns_off(value: &OsStr) -> bool {
    parse_sinks(value) == Sinks::NONE
}

fn doubt_of(name: &OsStr, value: &OsStr) -> Option<String> {
    let Some((_, takes)) = VARIABLES.iter().find(|(known, _)| name == OsStr::new(known)) else {
        if !name.as_bytes().starts_with(b"JITSYM") {
            return None;
        }
        let known = VARIABLES.iter().map(|(known, _)| *known);
        return Some(format!("this version knows no such variable{}", did_you_mean(name.as_bytes(), known)));
    };
    let any_of = |words: &[&str]| words.iter().any(|word| value.as_bytes().eq_ignore_ascii_case(word.as_bytes()));
    match takes {
        Takes::Sinks => {
            let off = ["off", "0", "none", "no", "false"];
            let known = || KINDS.iter().map(|kind| kind.word).chain(SINK_WORDS_ON).chain([BRIDGE_WORD]).chain(off);
            let is_known = |word: &&[u8]| known().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
            let word = config::words(value).filter(|word| !word.is_empty()).find(|word| !is_known(word))?;
            Some(format!("there is no sink `{}`{}", word.escape_ascii(), did_you_mean(word, known())))
        }
        Takes::Switch if any_of(&["0", "off", "1", "on", "yes", "true"]) => None,
        Takes::Switch => Some("anything but 0 and off counts as on".into()),
        Takes::Directory if !Path::new(value).is_absolute() => Some("is no absolute path, and refused".into()),
        Takes::Directory if !Path::new(value).is_dir() => Some("there is no such directory".into()),
        Takes::File if !Path::new(value).is_file() => Some("there is no such file".into()),
        Takes::Bytes if parse_size(value).is_none() => Some("is no number of bytes, as 64M is, and ignored".into()),
        Takes::Words(words) if !any_of(words) => Some(format!("is none of {}, and ignored", words.join(", "))),
        Takes::Directory | Takes::File | Takes::Bytes | Takes::Words(_) | Takes::Anything => None,
    }
}

/// Suggests the known word that is most similar to `word`, if any known word is similar enough.
fn did_you_mean<'k>(word: &[u8], known: impl Iterator<Item = &'k str>) -> String {
    // The prefix `JITSYM_` does not count for the length that limits the number of edits.
    let len = word.strip_prefix(b"JITSYM_").unwrap_or(word).len();
    let nearest = known.map(|known| (distance(word, known.as_bytes()), known)).min();
    match nearest {
        Some((edits, known)) if edits <= 1 + len / 5 => format!("; did you mean {known}?"),
        _ => String::new(),
    }
}

/// The number of bytes that have to be inserted, removed or changed to turn one word into the other (Levenshtein distance).
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, found) in other.iter().enumerate() {
            let changed = diagonal + usize::from(!byte.eq_ignore_ascii_case(found));
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

/// Prints the environment before a session opens, if `JITSYM_DEBUG` is set.
pub fn opening() {
    if debug::is_on() {
        debug::say(format_args!("libjitsym {}", env!("CARGO_PKG_VERSION")));
        for (name, value) in std::env::vars_os().filter(|(name, _)| name.as_bytes().starts_with(b"JIT")) {
            match doubt(&name, &value) {
                Some(doubt) => debug::say(format_args!("{doubt}")),
                None => debug::say(format_args!("{}={}", name.display(), value.display())),
            }
        }
    }
}

/// Prints the configuration that results from the options and the environment.
pub fn decided(config: &Config) {
    if debug::is_on() {
        let (DumpDir::Exactly(dump) | DumpDir::CacheBelow(dump)) = &config.dump_dir;
        let words = |sinks: Sinks| words(sinks).unwrap_or_else(|| "none: the session is off".into());
        debug::say(format_args!(
            "sinks wanted: {}; map in {}, jitdump in {}; adopts memory: {}; may be enabled late: {}; unwind records: {}",
            words(config.sinks),
            config.map_dir.display(),
            dump.display(),
            match (config.adopt, config.sinks.has(Sinks::REGION)) {
                (true, false) => "no, because region is not among the sinks",
                (true, true) => "yes",
                (false, _) => "no",
            },
            config.late,
            config.unwind,
        ));
    }
}

/// Prints the result of opening a session.
pub fn opened(result: &Result<Option<&Status>>) {
    if !debug::is_on() {
        return;
    }
    match result {
        Err(error) => debug::say(format_args!("no session: {}: {error}", error.name())),
        Ok(status) => {
            for kind in KINDS {
                let path = status.and_then(|status| status.path(kind.bit));
                path.inspect(|path| debug::say(format_args!("sink {}: {}", kind.word, path.display())));
            }
            let failed = status.and_then(|status| words(status.sinks_failed()));
            failed.inspect(|failed| debug::say(format_args!("sinks that failed: {failed}")));
        }
    }
}

/// Prints the counters when the process ends.
pub fn summary(process: &Process, status: &Status) {
    if debug::is_on() {
        process.checked.look(true);
        let stats = status.stats();
        debug::say(format_args!(
            "at exit: {} registered, {} moved, {} unregistered, {} refused, {} dropped, {} unreadable; {} bytes of map, {} \
             of jitdump; {} regions with {} registrations, {} refused, {} put off; {} errors of writing",
            stats.registered,
            stats.moved,
            stats.unregistered,
            stats.calls_refused,
            stats.dropped,
            stats.unreadable,
            stats.map_bytes,
            stats.jitdump_bytes,
            stats.regions,
            stats.region_code,
            stats.region_refused,
            stats.region_put_off,
            stats.write_errors,
        ));
    }
}

/// Returns the names of the sinks in the bit set `bits`, separated by spaces. Returns `None` if `bits` contains no sink.
pub fn sink_words(bits: u32) -> Option<String> {
    words(Sinks(bits))
}

fn words(sinks: Sinks) -> Option<String> {
    let words: Vec<&str> = KINDS.iter().filter(|kind| sinks.has(kind.bit)).map(|kind| kind.word).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// Records that a call is refused with this error. For the first refusal with each error, `JITSYM_DEBUG` also prints the
/// reason.
#[cold]
#[inline(never)]
pub fn refused(error: Error) {
    static SAID: AtomicU64 = AtomicU64::new(0);
    // `Busy` means that a signal handler has interrupted the library, and perhaps the allocator, so nothing may be printed.
    if error == Error::Busy {
        return;
    }
    if error.is_callers() {
        last_error::tell(error as u32);
        if let Some(shared) = process::current_shared() {
            shared.status.counters.calls_refused.add(1);
            // Wakes the writer, which then publishes the counter for observers of the process.
            shared.wake_if_asleep();
        }
    }
    let bit = 1 << (error as u32);
    if debug::is_on() && SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        debug::say(format_args!("refused: {}", InWords(error)));
    }
}

/// Displays an error, with the reason of the refusal if a reason was recorded.
struct InWords(Error);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InWords(error) = self;
        let noted = Some(last_error::last()).filter(|last| last.error == *error as u32);
        write!(f, "{}: ", error.name())?;
        match &noted {
            Some(noted) if noted.has_text() => write!(f, "{noted}")?,
            _ => write!(f, "{error}")?,
        }
        let code = noted.as_ref().and_then(last_error::Refusal::code);
        code.map_or(Ok(()), |name| write!(f, " (code `{name}`)"))
    }
}

/// The text of the latest error: the last failure in this process, or the last refused call of this thread. Empty if there was
/// no failure and no refusal.
pub fn last_error() -> String {
    let failed = process::current().map(|process| process.host.last_error.get()).unwrap_or_default();
    let refused = last_error::last();
    let error = Error::ALL.iter().find(|error| **error as u32 == refused.error);
    match error {
        Some(&error) if refused.number > failed.0 => InWords(error).to_string(),
        _ => failed.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubts_of(name: &str, value: &str) -> String {
        doubt(name.as_ref(), value.as_ref()).unwrap_or_default()
    }

    #[test]
    fn mistakes_are_found() {
        for (name, value, expected) in [
            ("JITSYM", "jitdmp", "JITSYM=jitdmp: there is no sink `jitdmp`; did you mean jitdump?"),
            ("JITSYM", "map, gdbb", "JITSYM=map, gdbb: there is no sink `gdbb`; did you mean gdb?"),
            ("JITSYM", "everything", "JITSYM=everything: there is no sink `everything`"),
            ("JITSYM_JITDUMP_MAX", "lots", "JITSYM_JITDUMP_MAX=lots: is no number of bytes, as 64M is, and ignored"),
            (
                "JITSYM_JITDUMPMAX",
                "64M",
                "JITSYM_JITDUMPMAX=64M: this version knows no such variable; did you mean JITSYM_JITDUMP_MAX?",
            ),
            ("JITSYM_LINES", "0", "JITSYM_LINES=0: this version knows no such variable"),
            ("JITSYM_DIR", "tmp", "JITSYM_DIR=tmp: is no absolute path, and refused"),
            ("JITDUMPDIR", "tmp", "JITDUMPDIR=tmp: is no absolute path, and refused"),
            ("JITSYM_DIR", "/nowhere", "JITSYM_DIR=/nowhere: there is no such directory"),
            ("JITSYM_LIB", "/nowhere.so", "JITSYM_LIB=/nowhere.so: there is no such file"),
            ("JITSYM_FORK", "never", "JITSYM_FORK=never: is none of now, late, off, on, 0, 1, and ignored"),
            ("JITSYM_ADOPT", "please", "JITSYM_ADOPT=please: anything but 0 and off counts as on"),
        ] {
            assert_eq!(doubts_of(name, value), expected);
        }
    }

    #[test]
    fn what_is_right_is_not_doubted() {
        for (name, value) in [
            ("JITSYM", "map,jitdump, region"),
            ("JITSYM", "ON"),
            ("JITSYM", "off"),
            ("JITSYM_DIR", "/tmp"),
            ("JITSYM_MAP_MAX", "64M"),
            ("JITSYM_DEBUG", "/tmp/log"),
            ("JITSYM_ADOPT", ""),
            ("OTHER", "x"),
        ] {
            assert_eq!(doubts_of(name, value), "", "{name}={value}");
        }
    }

    #[test]
    fn distances() {
        for (one, other, edits) in [("", "", 0), ("abc", "abc", 0), ("abc", "ab", 1), ("kitten", "sitting", 3)] {
            assert_eq!(distance(one.as_bytes(), other.as_bytes()), edits);
            assert_eq!(distance(other.as_bytes(), one.as_bytes()), edits);
        }
    }
}
