//! Defines the trait `Sink`, which has a method for each event that a sink may have to report.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::api::options::{Config, Sinks};
use crate::format::code_info::Info;
use crate::queue::chunk::Chunk;
use crate::queue::record::{Event, Load};
use crate::queue::spool::layout::FileState;
use crate::queue::status::Status;
use crate::registry::{Live, MapChange, Registry, Stored};

/// A sink reports code in one form, for example as a perf map or as a jitdump. The writer's thread calls the sink's methods in
/// the order of the events' times. Other threads may call only `close`, with `Close::Remove` or `Close::LetGo`.
pub trait Sink: Send {
    /// Opens the sink's output. The library calls this method when it starts, when the sink is enabled later, and in a forked
    /// child. Code that is already live is reported by a later call of `load_live`. On failure, returns a text for
    /// `jitsym_last_error`.
    fn open(&mut self, config: &Config) -> Result<(), String>;

    /// Reports code that became live, or that moved to another address. The registry already contains this change.
    fn load(&mut self, _code: &Loaded<'_>, _registry: &mut Registry) {}

    /// Reports code that became live in a region. Most sinks ignore this code, because profilers find the names of code in
    /// regions in the files of the regions.
    fn enter(&mut self, _code: &NewCode<'_>) {}

    /// Reports all live code to a sink that was enabled late, or to a sink of a forked child. A sink that reads the registry
    /// itself need not implement this method. `group_of` reads a group from the jitdump. Returns false if memory is short.
    fn load_live(&mut self, _registry: &mut Registry, _group_of: GroupOf<'_>) -> bool {
        true
    }

    /// Reports that the code with this id has ended, or that other code has replaced this code. This method is not called for
    /// code that moves: a move is a call of `enter` or `load` with the same id.
    fn gone(&mut self, _id: u64) {}

    /// Reports changes of the registry that no other method of the sink reports.
    fn changed(&mut self) {}

    /// Called in a forked child. The code that is live now will be reported later, by a call of `changed`.
    fn inherit_later(&mut self) {}

    /// Writes the changes that the sink has collected since the last call. Each change of a file has to pass
    /// `Status::write_gate`.
    fn write(&mut self, _round: &mut Round<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Whether the last attempt to write succeeded.
    fn is_ok(&self) -> bool {
        true
    }

    /// Whether the sink has collected changes that a later round should write.
    fn has_work(&self) -> bool {
        false
    }

    /// After a failed write: the time until the sink tries to write again.
    fn wake_in(&self) -> Option<Duration> {
        None
    }

    /// Prepares the sink for being disabled while there is live code. All changes have been written before this call. `keep` is
    /// true if the registry must keep the records of live code for sinks that start later.
    fn leave(&mut self, _registry: &mut Registry, _keep: bool) {}

    /// Closes the sink's output.
    fn close(&mut self, _how: Close) -> io::Result<()> {
        Ok(())
    }

    /// The path of the file that the sink writes.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// The state of the sink's file, for the spool, or `None` while the file is closed.
    fn saved(&self) -> Option<Saved> {
        None
    }
}

/// Code that became live.
pub struct Loaded<'a> {
    pub id: u64,
    pub live: &'a Live,
    pub name: &'a [u8],
    /// How this code changes the lines of the perf map.
    pub change: MapChange,
    pub origin: Origin<'a>,
}

/// Code that became live in a region.
#[derive(Clone, Copy)]
pub struct NewCode<'a> {
    pub id: u64,
    pub time: u64,
    pub live: &'a Live,
    pub name: &'a [u8],
    pub info: Info<'a>,
    /// The bytes of the code. If `bytes` is empty, the sink has to read the bytes at the code's address.
    pub bytes: &'a [u8],
    /// Whether the registering thread itself noticed that this code replaces live code, and began a new epoch if one was
    /// needed.
    pub is_told: bool,
}

/// Why code became live at an address. An `Origin` refers to chunks, which are recycled only after the sinks have written their
/// output.
pub enum Origin<'a> {
    Registered(Chunk, &'a Event, &'a Load<'a>),
    /// The code was moved by `event`, whose body is `body`. `before` is the position in the jitdump of the group that describes
    /// the code before the move.
    Moved {
        event: &'a Event,
        body: &'a [u8],
        before: Option<Stored>,
    },
    /// The code was moved out of a region. The two fields are the time of the move, and the info of the code.
    LeftRegion(u64, Info<'a>),
}

impl<'a> Origin<'a> {
    /// The info of the code, or `None` for code that was moved and keeps its info.
    pub fn info(&self) -> Option<Info<'a>> {
        match *self {
            Origin::Registered(_, _, load) => Some(load.info()),
            Origin::Moved { .. } => None,
            Origin::LeftRegion(_, info) => Some(info),
        }
    }
}

/// One round of the writer, in which the sinks can write.
pub struct Round<'a> {
    pub registry: &'a mut Registry,
    /// Whether a caller waits until all output is up to date.
    pub now: bool,
    /// Whether the sinks close after this call.
    pub is_last: bool,
    /// The time of the last record.
    pub time: u64,
    /// A sink calls this function with the state of a new file, before the new file replaces the current file.
    pub announce: Announce<'a>,
}

/// Reads a group from the jitdump. `None` if the jitdump does not have the group.
pub type GroupOf<'a> = &'a mut dyn FnMut(Stored) -> Option<Vec<u8>>;

pub type Announce<'a> = &'a dyn Fn(Sinks, FileState);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The last session closes. A later session may continue to write the file.
    Stay,
    /// The sink is disabled, and releases its memory and descriptors.
    Leave,
    /// Removes the file, which is already closed.
    Remove,
    /// Closes the parent's file in a forked child, and does not remove the file.
    LetGo,
}

/// The state of a sink's file, for the spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    pub file: FileState,
    /// Whether the contents of the file differ from the registry.
    pub is_stale: bool,
    /// Whether other programs or libraries also write to the file.
    pub is_shared: bool,
}

/// Calls `each` for all live code that `wants` accepts, including code in regions. Passes the id, the registry entry, the name
/// and the info of the code to `each`. Reads groups from the jitdump only for accepted code. Returns false if memory is short.
pub fn each_live<T>(
    registry: &Registry,
    group_of: GroupOf<'_>,
    sink: &mut T,
    wants: impl Fn(&T, u64, &Live) -> bool,
    each: impl Fn(&mut T, u64, &Live, &[u8], Info<'_>),
) -> bool {
    let Some(ids) = registry.live_by_place(None) else { return false };
    for id in ids {
        let (Some(live), Some(name)) = (registry.get(id), registry.name_of(id)) else { continue };
        if wants(sink, id, &live) {
            let kept = registry.info_of(id);
            let group = live.stored.filter(|_| kept.is_empty()).and_then(&mut *group_of).unwrap_or_default();
            each(sink, id, &live, name, if kept.is_empty() { Info::of_group(&group, name) } else { kept });
        }
    }
    true
}

/// A function that makes a sink, which is not open yet.
pub type Make = fn(&Arc<Status>) -> Box<dyn Sink>;

pub struct Kind {
    pub bit: Sinks,
    /// The sink's name in the environment variable `JITSYM`.
    pub word: &'static str,
    /// What the sink needs besides the name and the address range of the code. If `Sinks::GROUPS` is set, a thread that
    /// registers code also records lines and unwind tables. If `Sinks::BYTES` is set, the thread also records the bytes of the
    /// code. If `Sinks::MUST_WAIT` is set, each call waits until the sink has reported the call's code.
    pub wants: Sinks,
    /// Whether profilers read the sink's file. Sinks with this flag run if neither the program nor its user selects sinks. Code
    /// in regions is not reported to sinks with this flag, because profilers also read the files of regions.
    pub is_default: bool,
    /// Makes the sink. This field is `None` for the jitdump and the regions, because `SinkSet` has separate fields for these
    /// two sinks.
    pub make: Option<Make>,
}

/// Records in the status that a sink cannot write at present. The file of this sink still consists of whole records. The other
/// sinks continue, and this sink tries again later.
pub fn stall(status: &Status, sink: Sinks, path: Option<&Path>, error: &io::Error) {
    status.counters.write_errors.add(1);
    status.sink_is_behind(sink);
    status.last_error.set(describe("write", path.unwrap_or(Path::new("")), error));
}

/// Describes a failure, with the file and the attempted operation, for `jitsym_last_error`.
pub fn describe(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {error}", path.display())
}
