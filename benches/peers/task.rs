//! What a worker is to do, and how it is told: as words on its command line.

use std::path::{Path, PathBuf};

use crate::contenders::Kind;
use crate::pin::Pin;
use crate::record::Shape;

/// The first word of a worker's command line.
pub const WORKER: &str = "--worker";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Bytes of unwind tables in this library's records; memory in use between its threads at the pace of `Latency`.
    Probe,
    /// One thread at a steady pace.
    Latency,
    /// Threads that register a few functions and sleep.
    Bursts,
    /// Threads that do nothing else.
    Saturated,
    /// One function each millisecond.
    Rate,
    /// A process that starts the library, registers ten functions and ends it.
    Start,
}

impl Mode {
    /// Those that can be asked for.
    pub const ALL: [Mode; 5] = [Mode::Latency, Mode::Bursts, Mode::Saturated, Mode::Rate, Mode::Start];

    pub fn name(self) -> &'static str {
        match self {
            Mode::Probe => "probe",
            Mode::Latency => "latency",
            Mode::Bursts => "bursts",
            Mode::Saturated => "saturated",
            Mode::Rate => "rate",
            Mode::Start => "start",
        }
    }

    pub fn parse(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().chain([Mode::Probe]).find(|mode| mode.name() == word)
    }
}

/// What contenders are compared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Setting {
    pub mode: Mode,
    /// Bytes of code.
    pub size: usize,
    pub threads: usize,
}

/// One measurement.
pub struct Task {
    pub setting: Setting,
    pub contender: Kind,
    /// Percentage of the usual number of calls.
    pub effort: usize,
    /// Bytes of unwind tables in each record.
    pub tables: usize,
    /// Bytes of the region that `memcpy` writes to, for each thread.
    pub region: usize,
    /// Rate: also watch the background thread while there is nothing to do. Start: load the library and do not call it.
    pub idle: bool,
    /// The processors that the threads are bound to, if any.
    pub pin: Option<Pin>,
    /// Where the files go.
    pub dir: PathBuf,
    /// `libjitsym.so`.
    pub library: PathBuf,
}

impl Task {
    pub fn to_words(&self) -> Vec<String> {
        let Setting { mode, size, threads } = self.setting;
        let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        vec![
            WORKER.into(),
            mode.name().into(),
            size.to_string(),
            threads.to_string(),
            self.contender.name().into(),
            self.effort.to_string(),
            self.tables.to_string(),
            self.region.to_string(),
            u8::from(self.idle).to_string(),
            self.pin.map_or("-".into(), |Pin(caller, background)| format!("{caller},{background}")),
            path(&self.dir),
            path(&self.library),
        ]
    }

    /// From what follows `WORKER`.
    pub fn from_words(words: &[String]) -> Task {
        let parse = |word: &str| word.parse::<usize>().expect("a number");
        let number = |at: usize| parse(&words[at]);
        let mode = Mode::parse(&words[0]).expect("a mode");
        Task {
            setting: Setting { mode, size: number(1), threads: number(2) },
            contender: Kind::parse(&words[3]).expect("a contender"),
            effort: number(4),
            tables: number(5),
            region: number(6),
            idle: number(7) != 0,
            pin: words[8].split_once(',').map(|(caller, background)| Pin(parse(caller), parse(background))),
            dir: PathBuf::from(&words[9]),
            library: PathBuf::from(&words[10]),
        }
    }

    pub fn shape(&self) -> Shape {
        Shape { code: self.setting.size, tables: self.tables }
    }

    /// To be called when the contender is warm: some start their threads with the first function.
    pub fn bind_background(&self) {
        self.pin.iter().for_each(|pin| pin.bind_background());
    }

    /// A file for a contender to write.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A number of calls, or of groups of calls, according to the effort asked for.
    pub fn amount(&self, usual: usize) -> usize {
        (usual * self.effort / 100).max(2)
    }
}
