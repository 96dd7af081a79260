//! The calls of an open session.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::api::code::{Code, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::api::Id;
use crate::queue::status::Stats;
use crate::session::fork;
use crate::session::handle::{forget_off, place_number, place_of, set_off, Ref, TAG};
use crate::session::lifecycle::STOP_TIMEOUT;
use crate::session::process;
use crate::session::register::{self, watch_thread_if_running};
use crate::sink;
use crate::sink::region::{CodeRegion, RegionOptions};
use crate::sink::unwinder::told_in_calls;
use crate::sys::{debugger, dynamic_symbols, fork_lock, reserve, thread, valgrind};

fn unknown(id: Id) -> Error {
    Error::UnknownId.because("the id {x} was never given, or its code has been unregistered or replaced", [id.0])
}

/// The session that a handle names.
#[inline]
pub fn find(handle: u64) -> Result<Ref> {
    if handle & 0xff != TAG {
        return Err(Error::Session);
    }
    let process = match process::current() {
        Err(Error::Forked) => fork::inheritor_for(handle)?,
        other => other?,
    };
    let place = place_of(process, handle)?;
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    let shared = process.shared().ok_or(Error::Session)?;
    Ok(Ref { process, shared, place, handle })
}

pub fn close(handle: u64) -> Result<()> {
    match fork::close_unused(handle) {
        Some(closed) => closed,
        None => find(handle)?.close(),
    }
}

/// Removes code whose registration has failed from the counts and marks of the regions (`Regions::before_code`).
#[cold]
pub fn not_registered(addr: u64, size: u64, flags: u8) {
    if let Ok(process) = process::current() {
        process.regions.not_registered(addr, size, flags);
    }
}

impl Ref {
    /// The sinks that want records, as a set of [`Sinks`] bits. `None` if no sink runs and no code is remembered.
    #[inline]
    fn wanted(&self) -> Result<Option<Sinks>> {
        match self.shared.wanted() {
            Sinks::NONE => self.wanted_after_all(),
            wanted => Ok(Some(wanted)),
        }
    }

    /// Tries again to start the sinks, if this process is a forked child whose sinks could not start. Returns an error while
    /// the sinks cannot start.
    #[cold]
    fn wanted_after_all(&self) -> Result<Option<Sinks>> {
        /// The maximum time that a call waits for the sinks to start.
        const PATIENCE: Duration = Duration::from_secs(1);
        if self.process.unstarted() == Sinks::NONE {
            return Ok(None);
        }
        let started = thread::quietly(|| self.start_again(PATIENCE, false));
        self.outcome(started).map(|()| Some(self.shared.wanted()).filter(|wanted| *wanted != Sinks::NONE))
    }

    fn start_again(&self, time: Duration, at_once: bool) -> Result<()> {
        self.process.with_lifecycle(Instant::now() + time, |lifecycle| {
            let started = lifecycle.start_again(self.process.parts(self.shared), at_once);
            watch_thread_if_running(self.shared, lifecycle);
            started
        })
    }

    /// Registers code. `flags` is the result of `Regions::before_code`, if it was called already. The caller has to call
    /// `known` before it returns to the host, unless the host has announced more code (`Code::more`).
    pub fn register(&self, code: &Code<'_>, flags: Option<u8>) -> Result<Id> {
        let Some(wanted) = self.wanted()? else { return self.still_open(Id(0)) };
        let status = &self.shared.status;
        let regions = &self.process.regions;
        let watching = regions.are_watching();
        let before = || if watching { regions.before_code(status, code.addr, code.size) } else { 0 };
        let flags = flags.unwrap_or_else(before);
        let registered = match wanted.has(Sinks::BY_CALLERS) {
            true => self.register_and_tell(code, flags),
            false => register::register(self, code, flags),
        };
        if registered.is_err() && watching {
            regions.not_registered(code.addr, code.size, flags);
        }
        let registered = registered.inspect(|&id| self.process.checked.registered(self.shared, id, code));
        self.outcome(registered)
    }

    /// Unregisters code. `lay_down` writes the record. `tell` removes the code's frame tables from the unwinder, and is called
    /// only if `wanted` contains `Sinks::BY_CALLERS`. The fork lock prevents a fork between `lay_down` and `tell`, after which
    /// the child's unwinder would still have the tables of unregistered code.
    #[inline]
    fn end(
        &self,
        wanted: Sinks,
        lay_down: impl FnOnce() -> Result<()>,
        tell: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let inside = wanted.has(Sinks::BY_CALLERS).then(fork_lock::enter);
        lay_down().and_then(|()| if inside.is_some() { tell() } else { Ok(()) })
    }

    #[cold]
    fn register_and_tell(&self, code: &Code<'_>, flags: u8) -> Result<Id> {
        // The fork lock prevents a fork between the registration and the report to the unwinder.
        let _inside = fork_lock::enter();
        let frames = register::frames(self, code)?;
        let id = self.outcome(register::register(self, code, flags))?;
        told_in_calls::put(&self.shared.ids, id, (code.addr, code.size), frames).map(|()| id).inspect_err(|_| {
            // The caller does not get this id.
            let _ = register::unregister(self.process, self.shared, id);
        })
    }

    /// Waits until the change that a call has made is known to the sinks for the unwinder and for valgrind, and to the sink for
    /// debuggers while a debugger listens. Right after the call, the host may run the new code, throw an exception through this
    /// code, or reach an address where a breakpoint must already be set. After the host has unregistered code, the host may
    /// overwrite the code's memory, and with it a breakpoint of the debugger.
    ///
    /// An error means that a sink does not know the change yet. If a call waits only for the sink for debuggers, there is no
    /// error, because the debugger may have stopped the writer but not the calling thread.
    #[inline]
    pub fn known(&self) -> Result<()> {
        if self.shared.wanted().has(Sinks::MUST_WAIT) {
            self.wait_until_known()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn wait_until_known(&self) -> Result<()> {
        /// A debugger may stop all threads during the wait. A stop of any length uses up at most one `STEP` of the waiting
        /// time.
        const STEP: Duration = Duration::from_millis(50);
        // Under valgrind only one thread runs at a time, so the writer may wait long before it runs. If `is_called` returns
        // true, a debugger has stopped the writer, and soon stops the other threads.
        let is_slow = valgrind::is_running();
        let most = || if is_slow || debugger::is_called() { 1200 } else { 20 };
        // `told` counts the changes that the writer has reported to the sinks. While these counts grow, the writer makes
        // progress, and will report this call's change later.
        let told = || (self.shared.status.counters.told.get(), debugger::times_told());
        let (mut last, mut idle) = (told(), 0);
        let goes_on = || {
            let now = told();
            idle = if now == last { idle + 1 } else { 0 };
            last = now;
            idle < most()
        };
        let answer = thread::uncancelled(|| self.shared.wait_until_told(STEP, goes_on));
        match answer {
            // The writer has not reported this change, or could not report it to one of the sinks.
            Err(Error::Timeout | Error::NoMemory | Error::SinkFailed | Error::Writer)
                if sink::any_must_wait(self.shared.status.sinks_with_notes()) =>
            {
                self.outcome(answer)
            }
            // The writer has ended, so no sink runs.
            _ => Ok(()),
        }
    }

    pub fn code_size(&self, id: Id) -> Result<u64> {
        self.outcome(self.shared.ids.size_of(id).ok_or_else(|| unknown(id)))
    }

    pub fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()> {
        let Some(wanted) = self.wanted()? else { return self.still_open(()) };
        // The fork lock prevents a fork between the move of the code and the report of the move to the unwinder.
        let inside = wanted.has(Sinks::BY_CALLERS).then(fork_lock::enter);
        let moving =
            inside.as_ref().map(|_| told_in_calls::Moving::new(&self.shared.ids, id, target.addr)).transpose()?;
        let regions = &self.process.regions;
        let old = if regions.are_watching() { self.shared.ids.place_of(id) } else { None };
        let flags = old.map_or(0, |(addr, size)| {
            regions.after_code(&self.shared.status, addr, size);
            regions.before_code(&self.shared.status, target.addr, size)
        });
        let moved = register::move_code(self.process, self.shared, id, target, flags);
        if let (Some((addr, size)), Err(error)) = (old, &moved) {
            regions.not_registered(target.addr, size, flags);
            if *error != Error::UnknownId {
                regions.code_stays(addr, size);
            }
        }
        let moved = moved.inspect(|()| self.process.checked.moved(self.shared, id, target));
        let moved = self.outcome(moved).and_then(|()| moving.map_or(Ok(()), told_in_calls::Moving::end));
        drop(inside);
        moved.and(self.known())
    }

    pub fn unregister(&self, id: Id) -> Result<()> {
        let Some(wanted) = self.wanted()? else { return self.still_open(()) };
        let status = &self.shared.status;
        if self.process.regions.are_watching() {
            if let Some((addr, size)) = self.shared.ids.place_of(id) {
                self.process.regions.after_code(status, addr, size);
            }
        }
        self.process.checked.ends(self.shared, id);
        let lay_down = || register::unregister(self.process, self.shared, id);
        let ended = self.end(wanted, lay_down, || told_in_calls::remove(id));
        let ended = if ended == Err(Error::UnknownId) { Err(unknown(id)) } else { ended };
        self.outcome(ended).and(self.known())
    }

    /// Unregisters all code that has a byte in a range. `unmap` is true if the caller unmaps the memory next.
    pub fn unregister_range(&self, addr: u64, size: u64, unmap: bool) -> Result<()> {
        self.end_range(addr, size)?;
        if unmap && self.process.regions.are_watching() {
            // `before_unmapping` may mark a region as unmapped. The writer ends a marked region once it has read all records
            // that are older than the mark. So `end_range` must write its record before the region is marked.
            self.process.regions.before_unmapping(&self.shared.status, addr, size);
        }
        Ok(())
    }

    fn end_range(&self, addr: u64, size: u64) -> Result<()> {
        let Some(wanted) = self.wanted()? else { return self.still_open(()) };
        let status = &self.shared.status;
        if self.process.regions.are_watching() {
            self.process.regions.after_range(status, addr, size);
        }
        self.process.checked.ends_in(addr, size);
        let lay_down = || register::unregister_range(self.process, self.shared, addr, size);
        let ended = self.end(wanted, lay_down, || told_in_calls::remove_in(addr, addr + size));
        self.outcome(ended).and(self.known())
    }

    pub fn flush(&self, timeout: Option<Duration>) -> Result<()> {
        self.process.checked.look(false);
        if self.process.unstarted() != Sinks::NONE {
            self.outcome(self.start_again(timeout.unwrap_or(STOP_TIMEOUT), true))?;
        }
        // Sinks that are being disabled still receive earlier registrations.
        match (self.shared.status.has_ended(), self.shared.status.sinks_failed()) {
            (true, Sinks::NONE) => self.still_open(()),
            (true, _) => self.outcome(Err(Error::SinkFailed)),
            (false, _) => match self.shared.flush(timeout.unwrap_or(STOP_TIMEOUT)) {
                // The writer has ended because of a failure, not because of a close.
                Err(_) if self.process.host.is_broken() => Err(Error::Internal),
                // The writer has ended because the session was closed or the sinks were disabled. The writer's last answer
                // tells whether everything was written.
                Err(Error::Closed) => self.outcome(self.shared.last_answer()),
                result => self.outcome(result),
            },
        }
    }

    /// Starts sinks for all sessions, with the options of this session.
    pub fn enable(&self, sinks: Option<Sinks>) -> Result<()> {
        let end = Instant::now() + STOP_TIMEOUT;
        let config = self.process.with_lifecycle(end, |_| self.config_for(sinks))?;
        // No lock may be held here.
        dynamic_symbols::keep_this_loaded();
        fork::watch();
        self.process.with_lifecycle(end, |lifecycle| {
            self.still_open(())?;
            let enabled = lifecycle.enable(self.process.parts(self.shared), config);
            watch_thread_if_running(self.shared, lifecycle);
            set_off(self.shared, lifecycle, self.handle);
            self.forget_if_closed();
            enabled
        })
    }

    fn config_for(&self, sinks: Option<Sinks>) -> Result<Config> {
        self.still_open(())?;
        let config = self.process.configs.get(place_number(self.handle)).ok_or(Error::Closed)?;
        if !config.late {
            return Err(Error::Forbidden);
        }
        if reserve::is_short() {
            return Err(Error::NoMemory);
        }
        let default = if config.asked_for() == Sinks::NONE { sink::default() } else { config.sinks };
        Ok(Config { sinks: sinks.unwrap_or(default), ..config })
    }

    /// Removes this session's handle from `handle::OFF` if the session was closed in the meantime.
    fn forget_if_closed(&self) {
        if self.still_open(()).is_err() {
            forget_off(self.handle);
        }
    }

    /// Stops sinks for all sessions.
    pub fn disable(&self, sinks: Option<Sinks>) -> Result<()> {
        self.process.with_lifecycle(Instant::now() + STOP_TIMEOUT, |lifecycle| {
            self.still_open(())?;
            let disabled = lifecycle.disable(self.process.parts(self.shared), sinks.unwrap_or(sink::every()));
            set_off(self.shared, lifecycle, self.handle);
            self.forget_if_closed();
            disabled
        })
    }

    pub fn close(&self) -> Result<()> {
        // If several threads close the session at once, only one thread succeeds in clearing the session's entry.
        let ended = self.place.compare_exchange(self.handle, 0, Ordering::SeqCst, Ordering::Relaxed);
        ended.map_err(|_| Error::Closed)?;
        // `OFF` may already contain the handle of a later session, so `OFF` is cleared only if it contains this session's
        // handle.
        forget_off(self.handle);
        let mut is_noted = false;
        let closed = self.process.with_lifecycle(Instant::now() + STOP_TIMEOUT, |lifecycle| {
            is_noted = true;
            lifecycle.open = lifecycle.open.saturating_sub(1);
            if lifecycle.open == 0 {
                lifecycle.stop(self.shared, false)
            } else if lifecycle.running.is_some() {
                // The flush is made under the lock, because otherwise another call could end the writer before the writer
                // answers.
                self.shared.flush(lifecycle.left())
            } else {
                Ok(())
            }
        });
        if !is_noted {
            self.process.is_closed_meanwhile();
        }
        closed
    }

    pub fn stats(&self) -> Stats {
        let (pool, regions) = (&self.shared.pool, &self.process.regions);
        regions.count_waiting(&self.shared.status);
        let stats = self.shared.status.stats();
        let no_regions = if regions.are_without_files() && stats.regions == 0 { Sinks::REGION } else { Sinks::NONE };
        Stats {
            sinks_running: stats.sinks_running.without(no_regions),
            memory: pool.bytes_used(),
            memory_held: pool.bytes_held(),
            spool: pool.memory().state(),
            threads: thread::permanent().into(),
            ..stats
        }
    }

    pub fn create_region(&self, wanted: &RegionOptions) -> Result<CodeRegion> {
        let status = &self.shared.status;
        fork::watch();
        let made = thread::quietly(|| self.process.regions.create(status, wanted))?;
        self.still_open(made).inspect_err(|_| {
            // The caller does not get the region, so the region is released.
            let _ = self.process.regions.release(status, made.exec);
        })
    }

    pub fn adopt_region(&self, addr: u64, size: u64) -> Result<()> {
        let status = &self.shared.status;
        let adopted = thread::quietly(|| self.process.regions.adopt(status, addr, size));
        let open = self.still_open(()).inspect_err(|_| {
            if adopted.is_ok() {
                // The caller does not get the region, so the region is released.
                let _ = thread::quietly(|| self.process.regions.release(status, addr));
            }
        });
        open.and(adopted)
    }

    pub fn grow_region(&self, start: u64, size: u64) -> Result<()> {
        self.is_not_allocators(start)?;
        self.outcome(thread::quietly(|| self.process.regions.grow(start, size)))
    }

    pub fn discard_region(&self, addr: u64, size: u64) -> Result<()> {
        // The writer must write the code that was registered in this memory before the memory is discarded.
        let _ = self.flush(None);
        self.outcome(thread::quietly(|| self.process.regions.discard(addr, size)))
    }

    pub fn release_region(&self, start: u64) -> Result<()> {
        self.is_not_allocators(start)?;
        // The region is released even if the flush fails, because a sink other than the region sink may have failed.
        let _ = self.flush(None);
        let status = &self.shared.status;
        self.outcome(thread::quietly(|| self.process.regions.release(status, start)))
    }

    pub fn path(&self, sink: Sinks) -> Result<PathBuf> {
        let path = match sink {
            _ if !self.shared.status.sinks().has(sink) => Err(Error::NotRunning),
            Sinks::REGION => self.process.regions.last_path(STOP_TIMEOUT),
            _ => self.shared.status.path(sink).ok_or(Error::NotRunning),
        };
        // A close ends the session first, and the sinks afterwards. So if `outcome` finds the session still open, the sinks ran
        // while this call looked for the path.
        self.outcome(path)
    }
}
