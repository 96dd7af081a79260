//! A sink for tests, which counts the calls of its methods. This file also shows how to write a new sink. Each new sink needs a
//! line in `KINDS`, and an unused bit of `Sinks` (`Kind::bit`).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use super::{Close, GroupOf, Kind, Loaded, Round, Sink};
use crate::api::options::{Config, Sinks};
use crate::registry::{Home, Registry};

pub static KIND: Kind = Kind {
    bit: Sinks(1 << 20),
    word: "counting",
    wants: Sinks::NONE,
    is_default: true,
    make: Some(|_| Box::new(Counting)),
};

/// The calls that the counting sink of this process has received.
static SEEN: Mutex<Seen> =
    Mutex::new(Seen { opened: 0, loads: 0, ended: 0, turns: 0, closed: Vec::new(), live: BTreeMap::new() });

#[derive(Clone, Debug)]
pub struct Seen {
    pub opened: u32,
    pub loads: u32,
    pub ended: u32,
    pub turns: u32,
    pub closed: Vec<Close>,
    /// Maps the id of each piece of live code to the address and the name of the code.
    pub live: BTreeMap<u64, (u64, String)>,
}

struct Counting;

pub fn seen() -> Seen {
    with(|seen| seen.clone())
}

fn with<T>(body: impl FnOnce(&mut Seen) -> T) -> T {
    body(&mut SEEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn count(id: u64, addr: u64, name: &[u8]) {
    with(|seen| {
        seen.loads += 1;
        seen.live.insert(id, (addr, String::from_utf8_lossy(name).into_owned()));
    });
}

impl Sink for Counting {
    fn open(&mut self, _: &Config) -> Result<(), String> {
        with(|seen| {
            seen.opened += 1;
            seen.live.clear();
        });
        Ok(())
    }

    fn load(&mut self, code: &Loaded<'_>, _: &mut Registry) {
        count(code.id, code.live.addr, code.name);
    }

    fn load_live(&mut self, registry: &mut Registry, _: GroupOf<'_>) -> bool {
        for id in registry.live_by_place(Some(Home::Plain)).into_iter().flatten() {
            let (Some(live), Some(name)) = (registry.get(id), registry.name_of(id)) else { continue };
            count(id, live.addr, name);
        }
        true
    }

    fn gone(&mut self, id: u64) {
        with(|seen| {
            seen.ended += 1;
            seen.live.remove(&id);
        });
    }

    fn write(&mut self, _: &mut Round<'_>) -> io::Result<()> {
        with(|seen| seen.turns += 1);
        Ok(())
    }

    fn close(&mut self, how: Close) -> io::Result<()> {
        with(|seen| seen.closed.push(how));
        Ok(())
    }
}
