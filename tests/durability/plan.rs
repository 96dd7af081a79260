//! What a run of `c-tests/durability/kill_me.c` does, chosen at random or not.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{compile, thorough, Link};

/// Bits of `jitsym_options.sinks` and `.flags`.
pub const MAP: u32 = 1;
pub const JITDUMP: u32 = 2;
pub const DROP_WHEN_FULL: u32 = 32;
pub const NO_SPOOL: u32 = 64;
pub const RECOVER: u32 = 128;

/// Values of `jitsym_stats.spool`.
pub const SPOOL_NONE: u64 = 0;
pub const SPOOL_SHARED: u64 = 1;

/// Calls of a thread that there is room for in the notes.
pub const CALLS_MAX: usize = 1 << 20;

/// So many rounds of everything, half of them in the gate, or more if the environment asks for them.
pub fn rounds(normal: usize) -> usize {
    let long = std::env::var_os("JITSYM_LONG_TESTS").is_some_and(|value| value == "1");
    match long {
        true => normal * 12,
        false if thorough() => normal,
        false => normal.div_ceil(2),
    }
}

/// The number that `c-tests/durability/kill_me.c` makes of another one.
pub fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Random numbers that can be had again.
pub struct Random(u64);

impl Random {
    /// From the clock, or as the environment says; prints which.
    pub fn new(test: &str) -> Random {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("time").as_nanos() as u64;
        let set = std::env::var("JITSYM_TEST_SEED").ok();
        let seed = set.map_or(now, |seed| seed.parse().expect("JITSYM_TEST_SEED is a number"));
        println!("{test}: JITSYM_TEST_SEED={seed}");
        Random(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mixed(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// What a run does: the arguments of the program, by their names there.
#[derive(Clone, Debug)]
pub struct Plan {
    pub threads: u64,
    pub calls: u64,
    pub rate: u64,
    pub size: u64,
    pub large: u64,
    pub seed: u64,
    pub ops: bool,
    pub relay: bool,
    pub stable: bool,
    pub sinks: u32,
    pub flags: u32,
    pub max_memory: u64,
    pub max_wait_ms: u64,
    /// 1 has a child that does nothing, 2 one that goes on with the session.
    pub fork: u32,
    pub again: bool,
    /// Before this call of the first thread the jitdump is removed, and made again.
    pub lose: u64,
    /// How long the jitdump may become; 0 for as long as usual.
    pub dump_max: u64,
    pub die_us: u64,
    /// At the end of all calls: 1 closes the session, 2 leaves it open.
    pub close: u64,
    /// What `c-tests/durability/slow_disk.c` does to the dump; empty for nothing.
    pub slow_disk: String,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            threads: 2,
            calls: CALLS_MAX as u64,
            rate: 0,
            size: 0,
            large: 3000,
            seed: 1,
            ops: false,
            relay: false,
            stable: false,
            sinks: MAP | JITDUMP,
            flags: 0,
            max_memory: 0,
            max_wait_ms: 60_000,
            fork: 0,
            again: false,
            lose: 0,
            dump_max: 0,
            die_us: 0,
            close: 0,
            slow_disk: String::new(),
        }
    }
}

impl Plan {
    /// The program and its arguments, for files in `dir` and the notes in `truth`.
    pub fn words(&self, dir: &Path, truth: &Path) -> Vec<String> {
        let mut words = vec![program().display().to_string()];
        let mut add = |name: &str, value: &dyn fmt::Display| words.push(format!("{name}={value}"));
        add("dir", &dir.display());
        add("truth", &truth.display());
        for (name, value) in [
            ("threads", self.threads),
            ("calls", self.calls),
            ("rate", self.rate),
            ("size", self.size),
            ("large", self.large),
            ("seed", self.seed),
            ("ops", self.ops.into()),
            ("relay", self.relay.into()),
            ("stable", self.stable.into()),
            ("sinks", self.sinks.into()),
            ("flags", self.flags.into()),
            ("max_memory", self.max_memory),
            ("max_wait_ms", self.max_wait_ms),
            ("fork", self.fork.into()),
            ("again", self.again.into()),
            ("lose", self.lose),
            ("dump_max", self.dump_max),
            ("die_us", self.die_us),
            ("close", self.close),
        ] {
            add(name, &value);
        }
        words
    }
}

/// The program to be killed.
pub fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        compile("gcc", &["c-tests/durability/kill_me.c"], Link::Shared, &["-std=gnu11", "-O2"], "kill_me")
    })
}

/// The library that slows writes down.
pub fn slow_disk() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let flags = ["-std=gnu11", "-O2", "-shared", "-fPIC"];
    BUILT.get_or_init(|| compile("gcc", &["c-tests/durability/slow_disk.c"], Link::None, &flags, "slow_disk.so"))
}
