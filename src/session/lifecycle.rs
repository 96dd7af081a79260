//! The state under the lock of the lifecycle: the number of open sessions, and the start and stop of the writer and its sinks.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Sinks};
use crate::queue::file_thread;
use crate::queue::oneshot::{oneshot, Take};
use crate::queue::process_state::Host;
use crate::queue::requests::{Change, Stop};
use crate::queue::shared::Shared;
use crate::queue::writer_in_calls::TRY_AGAIN;
use crate::session::writer_thread::Begin;
use crate::sink;
use crate::sink::region::Regions;
use crate::sink::retry::Retry;
use crate::sys::sync::outside::Arc;
use crate::sys::thread::Thread;
use crate::sys::{barrier, debug, host_fds, panic_guard, privileges, thread};
use crate::writer::{self, threadless, Inheritance, Writer};

/// The maximum time for which a close or the exit of the process waits for the writer. This is also the default timeout of a
/// flush.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of writers that have ended in this process and in the processes from which it was forked. The end of a writer
/// ends all registrations.
static ENDS: AtomicU32 = AtomicU32::new(0);

pub fn ends() -> u32 {
    ENDS.load(Ordering::Acquire)
}

/// The parts of the process that a writer needs.
#[derive(Clone, Copy)]
pub struct Parts {
    pub host: &'static Host,
    pub shared: &'static Shared,
    pub regions: &'static Arc<Regions>,
}

/// See the module's description.
#[derive(Default)]
pub struct Lifecycle {
    pub open: u32,
    /// The time at which the call that holds the lock stops waiting.
    end: Option<Instant>,
    pub running: Option<Running>,
    /// A writer that is still opening its files, even after a timeout of the call that started the writer.
    starting: Option<Starting>,
    /// The writer, if a writer exists and no thread runs it.
    writer: Option<Box<Writer>>,
    /// Receives the writer from its thread. `home` stays set if the writer did not stop in time, because the writer may stop
    /// later.
    home: Option<Take<Box<Writer>>>,
    /// The threads that `join_threads` waits for.
    threads: Vec<Thread>,
    unstarted: Option<Unstarted>,
}

/// The inherited state of a forked child whose sinks cannot start yet.
struct Unstarted {
    config: Config,
    inheritance: Inheritance,
    /// The time after which a registering call tries again to start the sinks. `None` after a start that timed out.
    again: Option<Retry>,
}

/// A writer thread that has opened its files.
pub struct Running {
    pub config: Config,
    /// The sinks that a session has disabled.
    disabled: Sinks,
    changing: Option<Changing>,
}

impl Running {
    fn new(config: Config) -> Running {
        Running { config, disabled: Sinks::NONE, changing: None }
    }
}

/// A request to the writer to change the sinks.
struct Changing {
    /// The options that applied before the sinks were changed.
    before: Config,
    answer: Take<Result<()>>,
}

/// A writer thread that has not opened its files yet.
struct Starting {
    config: Config,
    /// The channel through which the writer thread reports whether a sink could be opened.
    is_open: Take<bool>,
}

impl Lifecycle {
    /// Records that a call begins, and that this call stops waiting at `end`.
    pub fn begin(&mut self, end: Instant) {
        self.end = Some(end);
    }

    /// How long the call may still wait.
    pub fn left(&self) -> Duration {
        self.end.map_or(STOP_TIMEOUT, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Reduces the number of open sessions by `closed`, the number of sessions that were closed while another call held the
    /// lock. If no session is left, this function asks the writer to end, but does not wait for the end.
    pub fn note_closed(&mut self, shared: Option<&Shared>, closed: u32) {
        self.open = self.open.saturating_sub(closed);
        if let Some(shared) = shared.filter(|_| closed > 0 && self.open == 0) {
            let end = self.end.replace(Instant::now());
            let _ = self.stop(shared, false);
            self.end = end;
        }
    }

    /// Opens the sinks and starts the writer, if a sink is wanted. The inherited state of a forked child is kept until a start
    /// succeeds.
    pub fn start(&mut self, parts: Parts, config: Config, inheritance: Option<Inheritance>) -> Result<()> {
        let (mut inheritance, before) = match self.unstarted.take() {
            Some(unstarted) => (Some(unstarted.inheritance), unstarted.again),
            None => (inheritance, None),
        };
        let started = self.start_with(parts, config.clone(), &mut inheritance);
        if let (Err(error), Some(inheritance)) = (&started, inheritance) {
            parts.shared.status.set_sinks(Sinks::NONE, config.sinks);
            let again = (*error != Error::Timeout).then(|| Retry::after(before.as_ref()));
            self.unstarted = Some(Unstarted { config, inheritance, again });
        }
        started
    }

    /// Tries again to start the sinks of a forked child, if they could not start before, and if `at_once` is true or a new
    /// attempt is due.
    pub fn start_again(&mut self, parts: Parts, at_once: bool) -> Result<()> {
        let Some(unstarted) = &self.unstarted else { return Ok(()) };
        if !at_once && !unstarted.again.as_ref().is_some_and(Retry::is_due) {
            return Err(Error::SinkFailed);
        }
        let config = unstarted.config.clone();
        self.start(parts, config, None).or(Err(Error::SinkFailed))
    }

    /// The sinks that a forked child could not start so far. Contains `Sinks::REMEMBER` if the child also has to remember code.
    pub fn unstarted(&self) -> Sinks {
        self.unstarted_config().map_or(Sinks::NONE, |config| {
            config.sinks.with(if config.remember { Sinks::REMEMBER } else { Sinks::NONE })
        })
    }

    /// The options with which a forked child tries to start its sinks.
    pub fn unstarted_config(&self) -> Option<&Config> {
        self.unstarted.as_ref().map(|unstarted| &unstarted.config)
    }

    /// Returns the inherited state that this process could not use, because its sinks could not start. A child of this process
    /// inherits this state.
    pub fn hand_down(&mut self, forked_at: u64) -> Option<Inheritance> {
        self.unstarted.take().map(|unstarted| Inheritance { forked_at, ..unstarted.inheritance })
    }

    fn start_with(&mut self, parts: Parts, config: Config, inheritance: &mut Option<Inheritance>) -> Result<()> {
        let Parts { host, shared, regions } = parts;
        // A session that writes nothing starts no writer, and recovers no files of dead processes.
        if !config.starts_writer() {
            shared.status.set_sinks(Sinks::NONE, Sinks::NONE);
            return Ok(());
        }
        self.fetch_writer(shared)?;
        if !config.threads {
            thread::forbid(true);
        }
        shared.configure(&config);
        let no_thread = |error: io::Error| {
            host.last_error.set(format!("cannot start a thread: {error}"));
            shared.status.stop_sinks();
            Error::Thread
        };
        if thread::is_alone() && !barrier::is_light() {
            // In a process with several threads, the kernel takes milliseconds to register the process for this barrier. There,
            // the writer makes this registration later, when no caller waits.
            barrier::register();
        }
        if thread::are_forbidden() {
            return self.start_in_place(parts, config, inheritance);
        }
        // The thread of `host_fds` must exist before the writer opens files. Only the thread of `host_fds`, which uses the
        // host's descriptor table, can detect other writers of the library's files.
        host_fds::want();
        self.threads.push(host_fds::start().map_err(no_thread)?);
        let recover = recovers(shared, &config, inheritance);
        let writer = self.take_writer(parts);
        let (home, come_home) = oneshot();
        let (opened, is_open) = oneshot();
        let (inherit, inherited) = oneshot();
        let (ready, is_ready) = oneshot();
        let inherited = inheritance.is_some().then_some((inherited, ready));
        let begin = Box::new(Begin { writer, config: config.clone(), recover, home, opened, inherited });
        let (hand, take) = oneshot();
        // `hand.give` passes the arguments to the writer's thread. The calling thread calls `hand.give` just before it waits,
        // so that the kernel then runs the writer at once.
        let spawned = thread::spawn_quiet(thread::WRITER, thread::STACK, move || {
            take.wait().into_iter().for_each(|begin: Box<Begin>| begin.run());
        });
        match spawned {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                host_fds::stop();
                self.writer = Some(begin.writer);
                self.join_threads();
                return Err(no_thread(error));
            }
        }
        hand.give(begin);
        self.home = Some(come_home);
        self.starting = Some(Starting { config, is_open });
        let started = self.finish_start(shared);
        if inheritance.is_some() && started.is_err() {
            // The child continues without sinks. After `give_up`, the writer ends when it finds that no call waits for it.
            self.starting.take().map(|starting| starting.is_open.give_up());
        } else if let Some(inheritance) = inheritance.take() {
            if let Some(inherited) = &inheritance.regions {
                // The calling thread, not the writer, takes over the regions, because only the calling thread's descriptor
                // table contains the inherited descriptors.
                regions.inherit(&shared.status, inherited);
            }
            inherit.give(inheritance);
            // On a slow disk, this call stops waiting at the timeout, and the writer continues.
            if is_ready.take(self.left()) == Err(Error::Internal) {
                return Err(Error::Internal);
            }
        }
        started
    }

    /// Returns the writer that this process has used before, if there is one, and otherwise a new writer.
    fn take_writer(&mut self, Parts { host, shared, regions }: Parts) -> Box<Writer> {
        self.writer.take().unwrap_or_else(|| Box::new(Writer::new(host, shared, regions.clone())))
    }

    /// Opens the sinks on the calling thread, for a process without threads of the library. From now on, the calls of the host
    /// run the writer.
    fn start_in_place(&mut self, parts: Parts, config: Config, inheritance: &mut Option<Inheritance>) -> Result<()> {
        let Parts { host, shared, regions } = parts;
        let recover = recovers(shared, &config, inheritance);
        let writer = self.take_writer(parts);
        let (home, come_home) = oneshot();
        let inherited = || {
            let inherited = inheritance.take()?;
            inherited.regions.inspect(|inherited| regions.inherit(&shared.status, inherited));
            Some(inherited)
        };
        let begin = || thread::quietly(|| threadless::begin(writer, &config, recover, home, inherited));
        let Some(is_open) = panic_guard::guarded(|_| begin()) else {
            writer::fail(host, shared);
            return Err(Error::Internal);
        };
        self.home = Some(come_home);
        if !is_open {
            return self.fetch_writer(shared).and(Err(Error::NoSink));
        }
        self.running = Some(Running::new(config));
        Ok(())
    }

    /// Whether the writer has a thread. A thread that is about to end counts too.
    pub fn has_thread(&self) -> bool {
        self.home.is_some()
    }

    /// Waits until a started writer has opened its files.
    fn finish_start(&mut self, shared: &Shared) -> Result<()> {
        let Some(starting) = &self.starting else { return Ok(()) };
        let is_open = starting.is_open.take(self.left());
        // `starting` is removed, except after a timeout, because the writer's thread may then still open its files.
        let ended = self.starting.take_if(|_| is_open != Err(Error::Timeout));
        if !is_open? {
            return self.fetch_writer(shared).and(Err(Error::NoSink));
        }
        shared.signal_flush.begin();
        self.running = ended.map(|Starting { config, .. }| Running::new(config));
        Ok(())
    }

    /// Calls `finish_start`, if an earlier call stopped waiting before the writer had started.
    fn finish_earlier_start(&mut self, shared: &Shared) -> Result<()> {
        // The error `NoSink` belongs to the call that started the writer, so the present call ignores it.
        self.finish_start(shared).or_else(|error| if error == Error::NoSink { Ok(()) } else { Err(error) })
    }

    /// Waits until the writer has completed the requests of earlier calls that timed out.
    pub fn finish_earlier(&mut self, shared: &Shared) -> Result<()> {
        self.finish_earlier_start(shared)?;
        match self.finish_change(shared) {
            Err(Error::Timeout) => Err(Error::Timeout),
            // An error other than a timeout belongs to the call that requested the change, so the present call ignores it.
            _ if self.running.is_some() => Ok(()),
            // A writer that was asked to end may still be writing records, so the present call must wait for the writer's end
            // before it reports that all records are written.
            _ => self.fetch_writer(shared),
        }
    }

    /// Whether a writer is starting and no call waits for its start. Its sinks may start at any moment.
    pub fn is_starting(&self) -> bool {
        self.starting.is_some()
    }

    /// Takes the writer back from its thread, once that thread has ended its run.
    fn fetch_writer(&mut self, shared: &Shared) -> Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        let writer = await_answer(shared, home, self.left());
        // After a timeout, `home` is kept, because the thread may still return the writer. Any other error means that the
        // thread has ended, so `home` is removed. Later calls would fail if they waited for the ended thread.
        self.home.take_if(|_| !matches!(writer, Err(Error::Timeout)));
        self.writer = Some(writer?);
        self.join_threads();
        Ok(())
    }

    /// Waits for the end of the threads in `threads`, which are about to end.
    fn join_threads(&mut self) {
        self.threads.drain(..).for_each(Thread::join);
        debug::write_waiting();
    }

    /// Lets a new session use the writer that already runs. Starts the new session's sinks that do not run yet. If the new
    /// session is the first with the option `remember`, the writer begins to remember code.
    ///
    /// Starts failed or disabled sinks only if the session would otherwise have no running sink.
    pub fn join(&mut self, shared: &Shared, config: &Config) -> Result<()> {
        let Some(running) = &self.running else { return Ok(()) };
        let status = &shared.status;
        let (asked, failed) = (config.asked_for(), status.sinks_failed());
        let shares = || asked.overlaps(started(shared));
        let missing = asked.without(started(shared));
        let usual = missing.without(failed).without(running.disabled);
        let on = match config.late || running.config.asked_for() == Sinks::NONE {
            true if shares() || usual != Sinks::NONE => usual,
            true => missing,
            false if shares() || asked == Sinks::NONE => Sinks::NONE,
            false => return Err(Error::Conflict),
        };
        if on == Sinks::NONE && (running.config.remember || !config.remember) {
            return Ok(());
        }
        match self.change(shared, config, on, Sinks::NONE) {
            Err(Error::SinkFailed | Error::NoSink) if shares() => Ok(()),
            Err(Error::NoSink) => {
                // The failed call must not affect other sessions.
                status.remove_sinks(on.without(failed), sink::with_wants);
                Err(Error::NoSink)
            }
            result => result,
        }
    }

    pub fn enable(&mut self, parts: Parts, config: Config) -> Result<()> {
        let shared = parts.shared;
        self.finish_earlier(shared)?;
        let Some(running) = &self.running else {
            self.start(parts, config, None)?;
            return match shared.status.sinks_failed() {
                Sinks::NONE => Ok(()),
                _ => Err(Error::SinkFailed),
            };
        };
        let started = started(shared);
        if !config.can_join(&running.config, started) {
            return Err(Error::Conflict);
        }
        match config.sinks.without(started) {
            // In a forked child, inherited code may be missing from the files. The writer adds the inherited code to the files
            // at each change of the sinks.
            Sinks::NONE if shared.status.counters.inherited.get() == 0 => Ok(()),
            on => self.change(shared, &config, on, Sinks::NONE),
        }
    }

    pub fn disable(&mut self, parts: Parts, sinks: Sinks) -> Result<()> {
        let shared = parts.shared;
        self.finish_earlier(shared)?;
        let Some(running) = &self.running else {
            // Disabled sinks that could not start are no longer wanted.
            shared.status.remove_sinks(sinks, sink::with_wants);
            self.unstarted.take_if(|Unstarted { config, .. }| {
                config.sinks = config.sinks.without(sinks);
                config.sinks == Sinks::NONE && !config.remember
            });
            return Ok(());
        };
        let mut left = shared.status.sinks().without(sinks);
        if !running.config.sinks.has(Sinks::GDB) {
            // The gdb sink was started automatically, to report the code that other sinks write. The gdb sink alone does not
            // keep the writer running.
            left = left.without(Sinks::GDB);
        }
        if parts.regions.all().next().is_none() && !parts.regions.are_adopting() {
            // Without a region, the region sink has nothing to write, and does not keep the writer running.
            left = left.without(Sinks::REGION);
        }
        if left == Sinks::NONE && !running.config.remember {
            return self.stop(shared, true);
        }
        let config = running.config.clone();
        self.change(shared, &config, Sinks::NONE, sinks)
    }

    /// Asks the running writer to start or stop sinks, and waits for the answer.
    fn change(&mut self, shared: &Shared, wanted: &Config, on: Sinks, off: Sinks) -> Result<()> {
        let Some(running) = &mut self.running else { return Err(Error::NotRunning) };
        let mut config = running.config.with_sinks_of(wanted, on);
        config.sinks = config.sinks.without(off);
        config.remember |= wanted.remember;
        let (ack, answer) = oneshot();
        let mut requests = shared.requests();
        if shared.signal_flush.exits_elsewhere(thread::id()) || requests.change.is_some() {
            return Err(Error::Timeout);
        }
        shared.date(&mut requests);
        requests.change = Some(Change { on, off, config: config.clone(), ack });
        drop(requests);
        shared.wake();
        running.disabled = running.disabled.with(off).without(on);
        let before = std::mem::replace(&mut running.config, config);
        running.changing = Some(Changing { before, answer });
        self.finish_change(shared)
    }

    /// Waits until the writer has changed the sinks.
    fn finish_change(&mut self, shared: &Shared) -> Result<()> {
        let left = self.left();
        let Some(running) = &mut self.running else { return Ok(()) };
        let Some(changing) = &running.changing else { return Ok(()) };
        let answer = await_answer(shared, &changing.answer, left);
        // `changing` is removed, except after a timeout, because the writer may then still make the change.
        let ended = running.changing.take_if(|_| answer != Err(Error::Timeout));
        let result = answer?;
        if let Some(Changing { before, .. }) = ended.filter(|_| !matches!(result, Ok(()) | Err(Error::SinkFailed))) {
            // A sink may run although the change failed, for instance if memory is short.
            running.config = before.with_sinks_of(&running.config, started(shared).without(before.sinks));
        }
        // A gdb sink that was started automatically does not become part of the options.
        let by_itself = Sinks::GDB.without(running.config.sinks);
        running.config.sinks = shared.status.sinks().without(by_itself);
        result
    }

    /// Removes the files of stopped sinks, if the options request this. Waits for a writer that is about to end.
    pub fn remove_files(&mut self, shared: &Shared) -> Result<()> {
        if self.running.is_none() {
            self.fetch_writer(shared)?;
        }
        let Some(mut writer) = self.writer.take_if(|writer| writer.applier.sinks.are_files_removed()) else {
            return Ok(());
        };
        let (home, come_home) = oneshot();
        self.home = Some(come_home);
        file_thread::run_for(self.left(), move || {
            writer.applier.sinks.remove_files();
            home.give(writer)
        });
        self.fetch_writer(shared)
    }

    /// Ends the writer thread once the thread has written everything. `off` is true if the sinks are turned off while sessions
    /// stay open.
    pub fn stop(&mut self, shared: &Shared, off: bool) -> Result<()> {
        if let Err(error) = self.finish_earlier_start(shared) {
            match self.starting.take().map(|starting| (starting.is_open.give_up(), starting.config)) {
                // The writer has opened its files in the meantime.
                Some((Some(true), config)) => self.running = Some(Running::new(config)),
                // After `give_up`, the writer ends by itself once it has opened its files.
                _ => return Err(error),
            }
        }
        if self.running.is_none() {
            self.unstarted = None;
            return if off { self.fetch_writer(shared) } else { self.remove_files(shared) };
        }
        let (ack, answer) = oneshot();
        let mut requests = shared.requests();
        if shared.signal_flush.exits_elsewhere(thread::id()) {
            return Err(Error::Timeout);
        }
        shared.date(&mut requests);
        requests.stop = Some(Stop { off, ack });
        drop(requests);
        self.running = None;
        shared.wake();
        let answer = await_answer(shared, &answer, self.left());
        ENDS.fetch_add(1, Ordering::Release);
        let result = answer?;
        self.fetch_writer(shared).and(result)
    }
}

/// Whether a writer that starts now recovers the files of dead processes. By default, a process recovers no files if it has
/// more rights than other processes of its user. The options can request the recovery.
fn recovers(shared: &Shared, config: &Config, inheritance: &Option<Inheritance>) -> bool {
    let by_default = !shared.pool.is_open() && !privileges::are_more();
    inheritance.is_none() && (config.recover || by_default)
}

/// Waits for an answer of the writer, for at most `left`. Without a writer's thread, the call runs the writer, unless another
/// thread is running it.
fn await_answer<T>(shared: &Shared, answer: &Take<T>, left: Duration) -> Result<T> {
    let end = Instant::now() + left;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let step = if shared.in_place.is_used() { left.min(TRY_AGAIN) } else { left };
        match answer.take(step) {
            Err(Error::Timeout) if step < left => shared.wake(),
            answered => return answered,
        }
    }
}

/// The running sinks that a session has requested.
pub fn started(shared: &Shared) -> Sinks {
    shared.status.sinks().without(shared.status.sinks_by_default())
}
