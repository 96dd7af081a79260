//! The interface of a sink: what it is told, when it writes, and how it ends.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::api::options::{Config, Sinks};
use crate::format::info::Info;
use crate::queue::chunk::Chunk;
use crate::queue::record::{Event, Load};
use crate::queue::spool::layout::FileState;
use crate::queue::status::Status;
use crate::registry::{Live, MapChange, Registry, Stored};

/// A sink: one form in which code is reported. All its methods run on the background thread, in the order of time.
pub trait Sink: Send {
    /// Opens the sink's output: at the start, when it is enabled late, and in a forked child. Code that lives already is loaded
    /// after that. Returns a text for `jitsym_last_error` if it cannot be opened.
    fn open(&mut self, config: &Config) -> Result<(), String>;

    /// Code begins to live, or lives at another place now. The registry has it already.
    fn load(&mut self, _code: &Loaded<'_>, _registry: &mut Registry) {}

    /// Code begins to live in a region. The region's file names it, so that most sinks have nothing to do.
    fn enter(&mut self, _code: &NewCode<'_>) {}

    /// All code that lives when it is enabled late, or in a forked child. For a sink that does not ask the registry itself.
    /// `time` is after that of all records before. `group_of` reads what the jitdump has. False if there is no memory for that.
    fn load_live(&mut self, _registry: &mut Registry, _time: u64, _group_of: GroupOf<'_>) -> bool {
        true
    }

    /// Code with this id has ended, or other code has taken its place.
    fn gone(&mut self, _id: u64) {}

    /// Code goes on where `enter` or `load` says next.
    fn leaves(&mut self, id: u64) {
        self.gone(id);
    }

    /// The registry has changed in ways that were not announced.
    fn changed(&mut self) {}

    /// Writes what has come together since the last time. Each change of a file passes `Status::write_gate`.
    fn write(&mut self, _round: &mut Round<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Sets right what is wrong with the file, after the spool has noted what was written. `None` if there is nothing to do yet.
    fn repair(&mut self, _round: &mut Round<'_>) -> Option<io::Result<()>> {
        None
    }

    /// Whether the last attempt to write has succeeded.
    fn is_ok(&self) -> bool {
        true
    }

    /// Whether there is something to write that has to wait a little.
    fn has_work(&self) -> bool {
        false
    }

    /// How long it is until something that has failed is to be tried again.
    fn wake_in(&self) -> Option<Duration> {
        None
    }

    /// The sink is about to be disabled while code lives, and everything is written. `keep`: another one may be started.
    fn leave(&mut self, _registry: &mut Registry, _keep: bool) {}

    /// Ends what it does, in one of several ways.
    fn close(&mut self, _how: Close) -> io::Result<()> {
        Ok(())
    }

    /// The file that it writes to.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// What a spool has to know of the file, while it is open.
    fn saved(&self) -> Option<Saved> {
        None
    }
}

/// Code that begins to live.
pub struct Loaded<'a> {
    pub id: u64,
    pub live: &'a Live,
    pub name: &'a [u8],
    /// The change to a list of all live code in the order of addresses.
    pub change: MapChange,
    pub origin: Origin<'a>,
}

/// Code that begins to live in a region.
#[derive(Clone, Copy)]
pub struct NewCode<'a> {
    pub id: u64,
    pub time: u64,
    pub live: &'a Live,
    pub name: &'a [u8],
    pub info: Info<'a>,
    /// Empty if they are to be read at its address.
    pub bytes: &'a [u8],
    /// perf knows that it is in the place of other code.
    pub is_told: bool,
}

/// How code came to live. Chunks are not recycled before the sinks have written.
pub enum Origin<'a> {
    Registered(Chunk, &'a Event, &'a Load<'a>),
    /// It was moved, by an event with this body. `before`: where the jitdump has its group for the old place.
    Moved {
        event: &'a Event,
        body: &'a [u8],
        before: Option<Stored>,
    },
    /// It was moved out of a region at this time.
    LeftRegion(u64, Info<'a>),
}

impl<'a> Origin<'a> {
    /// `None` for code that keeps that of its other place.
    pub fn info(&self) -> Option<Info<'a>> {
        match *self {
            Origin::Registered(_, _, load) => Some(load.info()),
            Origin::Moved { .. } => None,
            Origin::LeftRegion(_, info) => Some(info),
        }
    }
}

/// One opportunity to write.
pub struct Round<'a> {
    pub registry: &'a mut Registry,
    /// Somebody waits for everything to be up to date.
    pub now: bool,
    /// Time of the last record.
    pub time: u64,
    /// Is told of a file before it replaces the one that is known.
    pub announce: Announce<'a>,
}

/// Reads a group from the jitdump, if it has one.
pub type GroupOf<'a> = &'a mut dyn FnMut(Stored) -> Option<Vec<u8>>;

pub type Announce<'a> = &'a dyn Fn(Sinks, FileState);

/// In which way a sink ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The last session closes, and another one may continue the file.
    Stay,
    /// The sink is disabled: everything that it holds is given back too.
    Leave,
    /// The file, which is closed, is removed.
    Remove,
    /// A forked child lets go of its parent's file.
    LetGo,
}

/// What a spool has to know of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub file: FileState,
    /// It does not say what the registry says.
    pub is_stale: bool,
    /// Others write to it too.
    pub is_shared: bool,
}

/// Hands over live code: id, place, name and info. False if there is no memory for that.
pub fn each_live(
    registry: &Registry,
    group_of: GroupOf<'_>,
    mut each: impl FnMut(u64, &Live, &[u8], Info<'_>),
) -> bool {
    let Some(ids) = registry.live_by_place() else { return false };
    for id in ids {
        let (Some(live), Some(name)) = (registry.get(id), registry.name_of(id)) else { continue };
        let kept = registry.info_of(id);
        let group = live.stored.filter(|_| kept.is_empty()).and_then(&mut *group_of).unwrap_or_default();
        each(id, &live, name, if kept.is_empty() { Info::of_group(&group, name) } else { kept });
    }
    true
}

/// Makes a sink that is not open yet.
pub type Make = fn(&Arc<Status>) -> Box<dyn Sink>;

/// A kind of sink.
pub struct Kind {
    pub bit: Sinks,
    /// Its name in the variable `JITSYM`.
    pub word: &'static str,
    /// What it wants to be laid down by registering threads, beside name and place: `Sinks::GROUPS`, `Sinks::BYTES`.
    pub wants: Sinks,
    /// It has nothing to open or to write, and runs beside others or where nothing else is asked for.
    pub is_silent: bool,
    /// It runs where nobody says which ones are to.
    pub is_default: bool,
    /// It hears of code in regions too.
    pub is_told_of_regions: bool,
    /// None for those that the set has by itself: forks and recovery read from the jitdump, and the applier sends code to regions.
    pub make: Option<Make>,
}

/// A sink cannot write. Its file contains whole records, the other sinks continue, and this one tries again.
pub fn stall(status: &Status, sink: Sinks, path: Option<&Path>, what: &str, error: &io::Error) {
    status.counters.write_errors.add(1);
    status.sink_is_behind(sink);
    status.last_error.set(describe(what, path.unwrap_or(Path::new("")), error));
}

/// A failure with the file and what was tried, for `jitsym_last_error`.
pub fn describe(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
