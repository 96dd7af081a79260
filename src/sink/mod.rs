//! The sinks. Each sink reports registered code in one form, such as a perf map or a jitdump. Each sink has a folder, whose
//! code decides what the sink writes, and when.
//!
//! The byte layouts of the outputs are in `format`.

#[cfg(test)]
pub mod counting;
pub mod gdb;
mod interface;
pub mod jitdump;
pub mod lookup;
mod owned_file;
pub mod perf_map;
pub mod region;
pub mod retry;
pub mod set;
#[cfg(test)]
pub mod test_random;
pub mod unwinder;
pub mod valgrind;

pub use interface::{
    describe, each_live, stall, Announce, Close, GroupOf, Kind, Loaded, NewCode, Origin, Round, Saved, Sink,
};

use crate::api::options::Sinks;

pub static KINDS: &[&Kind] = &[
    &perf_map::KIND,
    &jitdump::KIND,
    &region::KIND,
    &gdb::KIND,
    &unwinder::KIND,
    &valgrind::KIND,
    &lookup::KIND,
    #[cfg(test)]
    &counting::KIND,
];

pub fn every() -> Sinks {
    KINDS.iter().fold(Sinks::NONE, |all, kind| all.with(kind.bit))
}

/// The sinks that run if neither the program nor its user selects sinks.
pub fn default() -> Sinks {
    KINDS.iter().filter(|kind| kind.is_default).fold(Sinks::NONE, |all, kind| all.with(kind.bit))
}

/// Returns `sinks` together with the flags of these sinks (`Kind::wants`). The flags tell threads that register code which data
/// they must record.
pub fn with_wants(sinks: Sinks) -> Sinks {
    KINDS.iter().filter(|kind| sinks.has(kind.bit)).fold(sinks, |all, kind| all.with(wants_of(kind, sinks)))
}

fn wants_of(kind: &Kind, sinks: Sinks) -> Sinks {
    match kind.bit {
        Sinks::UNWINDER if sinks.has(Sinks::BY_CALLERS) => kind.wants.without(Sinks::MUST_WAIT),
        _ => kind.wants,
    }
}

/// Whether a call that registers code may return only after one of these sinks has reported the code.
pub fn any_must_wait(sinks: Sinks) -> bool {
    KINDS.iter().any(|kind| sinks.has(kind.bit) && wants_of(kind, sinks).has(Sinks::MUST_WAIT))
}
