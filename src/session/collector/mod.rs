//! A collector for Intel's JIT profiling API. Runtimes report code through this API, and the collector registers the code in a
//! session.
//!
//! Runtimes cannot report unwind tables through the API. If code begins with instructions that set up a frame pointer, the
//! collector assumes that the rest of the code preserves this frame pointer.

mod merge_lines;
pub mod reported_code;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::code::{Code, MoveTarget};
use crate::api::error::Result;
use crate::api::options::{Options, Sinks};
use crate::api::Id;
use crate::session::calls::{close, find};
use crate::session::handle::Ref;
use crate::session::rust_api::open;
use crate::sys::{fork_lock, privileges};
pub use merge_lines::Row;
pub use reported_code::Method;
use reported_code::{Registrations, State};

/// The handle of the session that the collector has opened, or 0. The session stays open for the life of the process and its
/// forked children.
static SESSION: AtomicU64 = AtomicU64::new(0);

impl Registrations for Ref {
    fn register(&self, code: &Code<'_>) -> Result<Id> {
        let registered = Ref::register(self, code, None);
        if registered.is_ok() {
            // `known` fails if a sink does not know the code yet. The API has no way to report this failure to the runtime, so
            // the failure is ignored.
            let _ = self.known();
        }
        registered
    }

    fn unregister(&self, id: Id) -> Result<()> {
        Ref::unregister(self, id)
    }

    fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()> {
        Ref::move_code(self, id, target)
    }
}

/// Opens the session, with the options of the environment, unless the session is open already. Returns whether a sink wants
/// symbols.
pub fn start() -> Result<bool> {
    let known = SESSION.load(Ordering::Acquire);
    if known == 0 {
        // In a program with more rights than its caller, the library ignores the environment, and so also the variable that
        // made the runtime load the library.
        let sinks = privileges::is_started_with_more().then_some(Sinks::NONE);
        let opened = open(&Options { sinks, ..Options::default() })?;
        if SESSION.compare_exchange(0, opened, Ordering::AcqRel, Ordering::Acquire).is_err() {
            close(opened)?;
        }
    }
    Ok(!session()?.is_idle())
}

fn session() -> Result<Ref> {
    find(SESSION.load(Ordering::Acquire))
}

/// Runs `body` with the collector's state in this process, if a sink wants symbols.
fn with_state(body: impl FnOnce(&Ref, &mut State) -> Result<bool>) -> Result<bool> {
    let session = session()?;
    if session.is_idle() {
        return session.still_open(false);
    }
    let _inside = fork_lock::enter();
    let mut state = session.process.collector.lock()?;
    body(&session, &mut state)
}

/// Does the same as `with_state`, but first registers the inlined functions that were reported before.
fn with_settled(body: impl FnOnce(&Ref, &mut State) -> Result<bool>) -> Result<bool> {
    with_state(|session, state| {
        state.settle(session);
        body(session, state)
    })
}

/// Does the same as `with_settled`, but also passes the address of the runtime's loaded object to `body`. `caller` is an
/// address in this object.
fn with_caller(caller: u64, body: impl FnOnce(&Ref, &mut State, u64) -> Result<bool>) -> Result<bool> {
    let session = session()?;
    if session.is_idle() {
        return session.still_open(false);
    }
    let module = session.process.collector.module(caller);
    with_settled(|session, state| body(session, state, module))
}

/// Registers code of a method. `caller` is an address in the runtime that reports the code.
pub fn load(caller: u64, method: &Method<'_>) -> Result<bool> {
    if method.id == 0 || method.addr == 0 || method.size == 0 {
        return Ok(false);
    }
    with_caller(caller, |session, state, module| state.load(session, module, method))
}

/// Adds an inlined function. `parent` is the number of the method or inlined function into which this function was inlined.
pub fn inline(parent: u32, method: &Method<'_>) -> Result<bool> {
    if method.id == 0 || parent == 0 || method.size == 0 {
        return Ok(false);
    }
    with_state(|session, state| state.inline(session, parent, method))
}

/// Unregisters all code of a method.
pub fn unload(caller: u64, id: u32) -> Result<bool> {
    with_caller(caller, |session, state, module| state.unload(session, (module, id)))
}

/// Handles the event by which a runtime reports changed bytes of code.
pub fn update(addr: u64, size: u32) -> Result<bool> {
    with_settled(|session, state| state.update(session, addr, size))
}

/// Flushes the session when the calling runtime ends. Other runtimes may continue.
pub fn flush() -> Result<bool> {
    with_settled(|_, _| Ok(true))?;
    session()?.flush(None).map(|()| true)
}
