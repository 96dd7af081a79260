//! Combines the options and the environment into one configuration.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::limits::DIR_MAX;
use crate::api::options::{Config, Dialect, DumpDir, Fork, Options, Sinks};
use crate::sink::{self, KINDS};
use crate::sys::clock::Clock;
use crate::sys::privileges;
use crate::sys::valgrind::{self, Tool};

/// The minimum values of `map_max` and `jitdump_max`. Smaller values are raised to the minimum, because smaller files would be
/// useless.
const MAP_MAX_LEAST: u64 = 4096;
const JITDUMP_MAX_LEAST: u64 = 65536;

const DEFAULT_SPOOL_DIR: &str = "/dev/shm";

/// The directories to which processes with this environment write: a directory for maps and jitdumps, and a directory for
/// spools.
pub fn clean_dirs() -> Vec<PathBuf> {
    let set = std::env::var_os("JITSYM_DIR").filter(|value| !value.is_empty());
    let mut dirs = vec![set.map_or_else(|| "/tmp".into(), PathBuf::from), spool_dir()];
    dirs.dedup();
    dirs
}

/// The directory of spools, according to the environment.
pub fn spool_dir() -> PathBuf {
    let set = std::env::var_os("JITSYM_SPOOL_DIR").filter(|value| !value.is_empty());
    set.map_or_else(|| DEFAULT_SPOOL_DIR.into(), PathBuf::from)
}

/// A function that looks up an environment variable. Tests pass their own function, so that they need not change the real
/// environment.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The highest limit for pending records: 16 GiB, or a quarter of the addresses where they have 32 bits.
const MEMORY_MOST: u64 = if size_of::<usize>() == 8 { 16 << 30 } else { 1 << 30 };

impl Config {
    /// Combines options with this process's environment.
    pub fn new(options: &Options) -> Result<Config> {
        // A program that runs with more rights than its caller must not write to a path that the caller chooses.
        let privileged = privileges::is_started_with_more();
        let lookup =
            |name: &str| if privileged { None } else { std::env::var_os(name).filter(|value| !value.is_empty()) };
        Config::with_env(options, &lookup, valgrind::tool())
    }

    fn with_env(options: &Options, env: Lookup<'_>, tool: Tool) -> Result<Config> {
        let switch = |name| env(name).map(|value| value != "0" && value != "off");
        let adopt = switch("JITSYM_ADOPT");
        let is_off = options.off_by_default && adopt != Some(true);
        let default_sinks = if is_off { Sinks::NONE } else { sink::default() };
        let env_sinks = env("JITSYM").map(|value| parse_sinks(&value));
        let bridge = options.bridge || env("JITSYM").is_some_and(|value| asks_for_bridge(&value));
        let for_valgrind =
            tool != Tool::Nothing && env_sinks != Some(Sinks::NONE) && switch("JITSYM_VALGRIND").unwrap_or(true);
        let sinks = prefer(options, options.sinks, env_sinks).unwrap_or(default_sinks);
        // Adopted memory needs the region sink. So the region sink is added to a session's sinks if the environment requests
        // adoption and `JITSYM` does not list sinks. No sink is added to a session without sinks.
        let adds_files = adopt == Some(true) && env_sinks.is_none() && sinks != Sinks::NONE;
        let sinks = if adds_files { sinks.with(Sinks::REGION) } else { sinks };
        // valgrind assumes that code in mappings of files never changes.
        let sinks = if for_valgrind { sinks.without(Sinks::REGION).with(Sinks::VALGRIND) } else { sinks };

        let env_dir = env("JITSYM_DIR").map(PathBuf::from);
        let tmp = match options.map_dialect {
            Dialect::Perf => "/tmp",
            Dialect::Simpleperf => "/data/local/tmp",
        };
        let map_dir = prefer(options, options.map_dir.clone(), env_dir.clone()).unwrap_or_else(|| tmp.into());
        let dump_dir = match prefer(options, options.jitdump_dir.clone(), env_dir) {
            Some(dir) => DumpDir::Exactly(dir),
            None => match env("JITDUMPDIR") {
                Some(base) => DumpDir::CacheBelow(base.into()),
                None => DumpDir::Exactly(tmp.into()),
            },
        };
        let (DumpDir::Exactly(dump_path) | DumpDir::CacheBelow(dump_path)) = &dump_dir;
        check_dir(&map_dir)?;
        check_dir(dump_path)?;
        let spool = prefer(options, options.no_spool.then_some(false), switch("JITSYM_SPOOL")).unwrap_or(true);
        let spool_dir = prefer(options, options.spool_dir.clone(), env("JITSYM_SPOOL_DIR").map(PathBuf::from));
        let spool_dir = spool_dir.unwrap_or_else(|| DEFAULT_SPOOL_DIR.into());
        check_dir(&spool_dir)?;

        let arch_timestamp = env("JITDUMP_USE_ARCH_TIMESTAMP").is_some_and(|value| value != "0");
        let no_unwind = options.no_unwind.then_some(false);
        let is_on = |name| switch(name).unwrap_or(false);
        // `JITSYM_LATE` overrides the host's options, because the user sets it. If it forbids late sinks, no code is
        // remembered.
        let late = switch("JITSYM_LATE").unwrap_or(true);
        let remember = options.remember || env("JITSYM_LATE").is_some_and(|value| value == "remember");
        let bound = |option, name, least| {
            let set = prefer(options, option, env(name).and_then(|value| parse_size(&value)));
            set.filter(|&most| most != 0).map_or(u64::MAX, |most| most.max(least))
        };
        Ok(Config {
            sinks,
            unwind: prefer(options, no_unwind, switch("JITSYM_UNWIND")).unwrap_or(true),
            inlines: is_on("JITSYM_JITDUMP_INLINES"),
            drop_when_full: options.drop_when_full,
            map_dir,
            dump_dir,
            dialect: options.map_dialect,
            file_mode: options.file_mode.unwrap_or(0o644),
            max_memory: options.max_memory.unwrap_or(64 << 20).clamp(1 << 20, MEMORY_MOST) as usize,
            max_wait: options.max_wait.unwrap_or(Duration::from_millis(10)),
            clock: if arch_timestamp && Clock::ARCH_AVAILABLE { Clock::Arch } else { Clock::Monotonic },
            spool,
            spool_dir,
            threads: prefer(options, options.no_threads.then_some(false), switch("JITSYM_THREADS")).unwrap_or(true),
            recover: options.recover || is_on("JITSYM_RECOVER"),
            fork: prefer(options, options.fork, env("JITSYM_FORK").and_then(parse_fork)).unwrap_or_default(),
            remove_files: options.remove_files || is_on("JITSYM_REMOVE"),
            remember: remember && late,
            late,
            // The variable `JITSYM_ADOPT` overrides the option even without `env_wins`.
            adopt: adopt.unwrap_or(options.adopt) && !for_valgrind,
            bridge,
            // Whether the gdb sink may start by itself. With the bridge, the gdb sink must not start, because debuggers already
            // have the code that the bridge finds, and cannot handle code that is reported twice. Under a valgrind profiler,
            // the gdb sink starts by itself only if `JITSYM_GDB` requests it: no debugger is used there, and the sink would
            // double the cost of a registration.
            debugger: late && !bridge && switch("JITSYM_GDB").unwrap_or(!for_valgrind || tool != Tool::Other),
            map_max: bound(options.map_max, "JITSYM_MAP_MAX", MAP_MAX_LEAST),
            jitdump_max: bound(options.jitdump_max, "JITSYM_JITDUMP_MAX", JITDUMP_MAX_LEAST),
        })
    }
}

fn prefer<T>(options: &Options, option: Option<T>, env: Option<T>) -> Option<T> {
    if options.env_wins {
        env.or(option)
    } else {
        option.or(env)
    }
}

/// The words of `JITSYM` that select the sinks that run by default.
pub const SINK_WORDS_ON: [&str; 4] = ["on", "1", "true", "yes"];

/// The word by which `JITSYM` requests the bridge.
pub const BRIDGE_WORD: &str = "bridge";

/// The words in a value of `JITSYM`, which are separated by commas.
pub fn words(value: &OsStr) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Whether this value of `JITSYM` requests the bridge.
pub fn asks_for_bridge(value: &OsStr) -> bool {
    words(value).any(|word| word.eq_ignore_ascii_case(BRIDGE_WORD.as_bytes()))
}

/// Whether the environment of this process requests the bridge.
pub fn environment_asks_for_bridge() -> bool {
    !privileges::is_started_with_more() && std::env::var_os("JITSYM").is_some_and(|value| asks_for_bridge(&value))
}

/// The sinks that a value of `JITSYM` selects, for example `map,jitdump` or `off`. Unknown words are skipped, because they may
/// be sinks of a later version. If `bridge` is the only known word, the result is the set of sinks that run by default.
pub fn parse_sinks(value: &OsStr) -> Sinks {
    let named = named_sinks(value);
    if named == Sinks::NONE && asks_for_bridge(value) {
        return sink::default();
    }
    named
}

fn named_sinks(value: &OsStr) -> Sinks {
    words(value).fold(Sinks::NONE, |sinks, word| {
        let is = |names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name.as_bytes()));
        if is(&SINK_WORDS_ON) {
            return sink::default();
        }
        let named = KINDS.iter().filter(|kind| is(&[kind.word]));
        named.fold(sinks, |sinks, kind| sinks.with(kind.bit))
    })
}

fn parse_fork(value: OsString) -> Option<Fork> {
    match value.as_bytes() {
        b"now" => Some(Fork::AtOnce),
        b"off" | b"0" => Some(Fork::Alone),
        b"on" | b"1" => Some(Fork::FirstCall),
        b"late" => Some(Fork::Late),
        _ => None,
    }
}

/// Parses a number of bytes. A letter after the number is a unit: `k`, `m` or `g` (powers of 1024).
pub fn parse_size(value: &OsStr) -> Option<u64> {
    let text = value.to_str()?.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn check_dir(dir: &Path) -> Result<()> {
    let fits = dir.as_os_str().len() <= DIR_MAX;
    if dir.is_absolute() && fits && !dir.as_os_str().as_bytes().contains(&0) {
        Ok(())
    } else {
        Err(Error::Path.because("a directory is no absolute path, or longer than {} bytes", [DIR_MAX as u64]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(options: Options, env: &[(&str, &str)]) -> Result<Config> {
        config_in(options, env, Tool::Nothing)
    }

    fn config_in(options: Options, env: &[(&str, &str)], tool: Tool) -> Result<Config> {
        let lookup = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        Config::with_env(&options, &lookup, tool)
    }

    #[test]
    fn sinks_come_from_options_then_environment_then_default() {
        let sinks = |options: Options, env: &[(&str, &str)]| config(options, env).unwrap().sinks;
        let map_only = || Options { sinks: Some(Sinks::MAP), ..Options::default() };
        assert_eq!(sinks(Options::default(), &[]), sink::default());
        assert_eq!(sinks(Options { off_by_default: true, ..Options::default() }, &[]), Sinks::NONE);
        assert_eq!(sinks(Options { off_by_default: true, ..Options::default() }, &[("JITSYM", "map")]), Sinks::MAP);
        assert_eq!(sinks(Options::default(), &[("JITSYM", "off")]), Sinks::NONE);
        let off = || Options { off_by_default: true, ..Options::default() };
        assert_eq!(sinks(off(), &[("JITSYM_ADOPT", "1")]), sink::default());
        assert_eq!(sinks(off(), &[("JITSYM_ADOPT", "0")]), Sinks::NONE);
        assert_eq!(sinks(off(), &[("JITSYM_ADOPT", "1"), ("JITSYM", "off")]), Sinks::NONE);
        assert_eq!(sinks(Options::default(), &[("JITSYM", "jitdump, map,later")]), Sinks(3));
        assert_eq!(sinks(Options::default(), &[("JITSYM", "region")]), Sinks::REGION);
        assert_eq!(sinks(Options::default(), &[("JITSYM", "bridge")]), sink::default());
        assert_eq!(sinks(Options::default(), &[("JITSYM", "map, Bridge")]), Sinks::MAP);
        assert_eq!(sinks(Options::default(), &[("JITSYM", "gdb,map")]), Sinks::MAP.with(Sinks::GDB));
        for (value, expected) in
            [("ON", sink::default()), ("true", sink::default()), ("Map", Sinks::MAP), ("foo", Sinks::NONE)]
        {
            assert_eq!(sinks(Options::default(), &[("JITSYM", value)]), expected, "{value}");
        }
        assert_eq!(sinks(map_only(), &[("JITSYM", "jitdump")]), Sinks::MAP);
        assert_eq!(sinks(Options { env_wins: true, ..map_only() }, &[("JITSYM", "jitdump")]), Sinks::JITDUMP);
        assert_eq!(sinks(Options { env_wins: true, ..map_only() }, &[]), Sinks::MAP);
        // The region sink is added to other sinks if the environment requests adoption and does not list the sinks.
        let adopt = ("JITSYM_ADOPT", "1");
        assert_eq!(sinks(map_only(), &[adopt]), Sinks::MAP.with(Sinks::REGION));
        assert_eq!(sinks(Options::default(), &[adopt, ("JITSYM", "map")]), Sinks::MAP);
        assert_eq!(sinks(map_only(), &[("JITSYM_ADOPT", "0")]), Sinks::MAP);
    }

    /// Under valgrind, the sink for valgrind replaces the region sink, and runs in addition to all other sinks. Outside
    /// valgrind, the environment does not add this sink.
    #[test]
    fn the_sink_for_valgrind_is_added_under_valgrind() {
        let sinks = |options: Options, env: &[(&str, &str)]| config_in(options, env, Tool::Other).unwrap().sinks;
        let added = sink::default().without(Sinks::REGION).with(Sinks::VALGRIND);
        assert_eq!(sinks(Options::default(), &[]), added);
        assert_eq!(sinks(Options { off_by_default: true, ..Options::default() }, &[]), Sinks::VALGRIND);
        assert_eq!(sinks(Options::default(), &[("JITSYM", "map")]), Sinks::MAP.with(Sinks::VALGRIND));
        assert_eq!(sinks(Options::default(), &[("JITSYM", "off")]), Sinks::NONE);
        assert_eq!(sinks(Options::default(), &[("JITSYM_VALGRIND", "0")]), sink::default());
        let off = config_in(Options { off_by_default: true, ..Options::default() }, &[], Tool::Other).unwrap();
        assert_eq!((off.asked_for(), off.adopt), (Sinks::NONE, false));
        assert_eq!(config(Options::default(), &[("JITSYM_VALGRIND", "1")]).unwrap().sinks, sink::default());
        let debugger = |env: &[_], tool| config_in(Options::default(), env, tool).unwrap().debugger;
        assert!(!debugger(&[], Tool::Other) && debugger(&[("JITSYM_GDB", "1")], Tool::Other));
        assert!(debugger(&[], Tool::Memcheck) && debugger(&[], Tool::Races));
        assert!(debugger(&[("JITSYM_VALGRIND", "0")], Tool::Other), "nothing is changed for valgrind then");
    }

    #[test]
    fn directories() {
        let dirs = |options: Options, env: &[(&str, &str)]| {
            let config = config(options, env).unwrap();
            (config.map_dir, config.dump_dir)
        };
        let exactly = |dir: &str| DumpDir::Exactly(dir.into());
        assert_eq!(dirs(Options::default(), &[]), ("/tmp".into(), exactly("/tmp")));
        assert_eq!(dirs(Options::default(), &[("JITSYM_DIR", "/d")]), ("/d".into(), exactly("/d")));
        let below = DumpDir::CacheBelow("/h".into());
        assert_eq!(dirs(Options::default(), &[("JITDUMPDIR", "/h")]), ("/tmp".into(), below));
        let options = Options { map_dir: Some("/m".into()), ..Options::default() };
        assert_eq!(dirs(options, &[("JITSYM_DIR", "/d")]), ("/m".into(), exactly("/d")));
        let android = Options { map_dialect: Dialect::Simpleperf, ..Options::default() };
        assert_eq!(dirs(android, &[]).0, PathBuf::from("/data/local/tmp"));
    }

    #[test]
    fn bad_directories_are_refused() {
        for dir in ["relative/dir", "", &format!("/{}", "x".repeat(1023))] {
            let options = Options { map_dir: Some(dir.into()), ..Options::default() };
            assert_eq!(config(options, &[]).unwrap_err(), Error::Path, "{dir}");
        }
    }

    #[test]
    fn switches() {
        assert!(config(Options::default(), &[]).unwrap().unwind);
        assert!(!config(Options::default(), &[("JITSYM_UNWIND", "0")]).unwrap().unwind);
        let inlines = |value| config(Options::default(), &[("JITSYM_JITDUMP_INLINES", value)]).unwrap().inlines;
        assert_eq!(
            (config(Options::default(), &[]).unwrap().inlines, ["0", "off", "1"].map(inlines)),
            (false, [false, false, true])
        );
        let most = |options: Options, value| config(options, &[("JITSYM_JITDUMP_MAX", value)]).unwrap().jitdump_max;
        assert_eq!((most(Options::default(), "64M"), most(Options::default(), "70000")), (64 << 20, 70_000));
        assert_eq!((most(Options::default(), "nonsense"), most(Options::default(), "1k")), (u64::MAX, 65536));
        assert_eq!(most(Options { jitdump_max: Some(1 << 20), ..Options::default() }, "64M"), 1 << 20);
        let clock = |value| config(Options::default(), &[("JITDUMP_USE_ARCH_TIMESTAMP", value)]).unwrap().clock;
        assert_eq!(clock("0"), Clock::Monotonic);
        assert_eq!(clock("1") == Clock::Arch, Clock::ARCH_AVAILABLE);
    }

    #[test]
    fn late_sinks() {
        let late = |remember, env: &[(&str, &str)]| {
            let config = config(Options { remember, ..Options::default() }, env).unwrap();
            (config.late, config.remember)
        };
        assert_eq!((late(false, &[]), late(true, &[])), ((true, false), (true, true)));
        assert_eq!(late(false, &[("JITSYM_LATE", "remember")]), (true, true));
        assert_eq!(late(true, &[("JITSYM_LATE", "off")]), (false, false), "the user has the last word");
        assert_eq!(late(false, &[("JITSYM_LATE", "on")]), (true, false));
    }

    #[test]
    fn bridge() {
        let bridge = |asked, value| {
            let config = config(Options { bridge: asked, ..Options::default() }, &[("JITSYM", value)]).unwrap();
            (config.bridge, config.debugger)
        };
        assert_eq!((bridge(false, "on"), bridge(true, "on")), ((false, true), (true, false)));
        assert_eq!((bridge(false, "bridge"), bridge(false, "map,BRIDGE")), ((true, false), (true, false)));
        assert_eq!(bridge(false, "bridges"), (false, true));
    }

    #[test]
    fn children() {
        let fork = |options: Option<Fork>, value: &str| {
            config(Options { fork: options, ..Options::default() }, &[("JITSYM_FORK", value)]).unwrap().fork
        };
        assert_eq!(config(Options::default(), &[]).unwrap().fork, Fork::Late);
        for (value, expected) in [
            ("now", Fork::AtOnce),
            ("off", Fork::Alone),
            ("0", Fork::Alone),
            ("on", Fork::FirstCall),
            ("late", Fork::Late),
            ("?", Fork::Late),
        ] {
            assert_eq!(fork(None, value), expected, "{value}");
            assert_eq!(fork(Some(Fork::AtOnce), value), Fork::AtOnce);
        }
    }

    #[test]
    fn a_session_joins_only_the_same_files() {
        let running = config(Options { sinks: Some(Sinks::MAP), ..Options::default() }, &[]).unwrap();
        let with = |options: Options| config(options, &[]).unwrap().can_join(&running, Sinks::MAP);
        let elsewhere = || Options { map_dir: Some("/m".into()), jitdump_dir: Some("/d".into()), ..Options::default() };
        assert!(with(Options::default()));
        assert!(with(Options { map_dir: None, ..elsewhere() }));
        assert!(with(Options { sinks: Some(Sinks::NONE), ..elsewhere() }));
        assert!(with(Options { sinks: Some(Sinks::JITDUMP), ..elsewhere() }));
        assert!(!with(elsewhere()));
        assert!(!with(Options { map_dialect: Dialect::Simpleperf, ..Options::default() }));
    }
}
