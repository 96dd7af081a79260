//! Sessions: opening and closing, and the check that stands before every call.

mod autoload;
mod config;
mod control;
pub mod fork;
pub mod process;
pub mod register;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::api::code::{Code, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Options, Sinks};
use crate::api::Id;
use crate::format::unwind::Source;
use crate::queue::engine::Engine;
use crate::queue::status::Stats;
use crate::session::control::{tidy, Control, PATIENCE};
use crate::sink;
use crate::sink::region::{CodeRegion, RegionOptions};
use crate::sys::futex::keeping_errno;
use crate::sys::{memory, thread};
use crate::writer::Inheritance;
pub use config::{clean_dirs, spool_dir};
use process::Process;

/// An open session. Closed when dropped.
#[derive(Debug)]
pub struct Session(u64);

/// A session that was open when it was looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ref {
    process: &'static Process,
    engine: &'static Engine,
    place: &'static AtomicU64,
    handle: u64,
}

/// A handle is `generation:16 | serial:32 | place:8 | TAG`. It is never dereferenced.
const TAG: u64 = 0x6a;

fn handle(process: &Process, serial: u32, place: usize) -> u64 {
    u64::from(process.generation) << 48 | u64::from(serial) << 16 | (place as u64) << 8 | TAG
}

/// The handle of the last session that was opened while no sink runs. Looked at before anything else, so that a runtime which
/// always calls the library pays a load and a branch for it as long as nobody wants symbols. In a forked child it is still the
/// parent's session, for which there is as little to do.
static OFF: AtomicU64 = AtomicU64::new(NO_HANDLE);

/// Has no tag, and is nothing that somebody hands over by mistake.
const NO_HANDLE: u64 = u64::from_be_bytes(*b"\xffnot off");

/// Whether there is nothing to do for this session, and nothing to check.
#[inline(always)]
pub(crate) fn is_off(handle: u64) -> bool {
    handle == OFF.load(Ordering::Relaxed)
}

/// The session that a handle from C names.
#[inline]
pub(crate) fn find(handle: u64) -> Result<Ref> {
    if handle & 0xff != TAG {
        return Err(Error::Session);
    }
    let process = match process::current() {
        Err(Error::Forked) => fork::heir_for(handle)?,
        other => other?,
    };
    let place = place_of(process, handle)?;
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    let engine = process.engine().ok_or(Error::Session)?;
    Ok(Ref { process, engine, place, handle })
}

/// The place of a session that is open.
#[inline]
pub(crate) fn place_of(process: &Process, handle: u64) -> Result<&AtomicU64> {
    let place = &process.sessions[(handle >> 8 & 0xff) as usize];
    if place.load(Ordering::Acquire) == handle {
        Ok(place)
    } else {
        Err(why_not(process, handle))
    }
}

#[cold]
fn why_not(process: &Process, handle: u64) -> Error {
    let (generation, serial) = ((handle >> 48) as u16, (handle >> 16) as u32);
    let given_out = serial != 0;
    if given_out && generation < process.generation {
        Error::Forked
    } else if given_out && generation == process.generation && serial < process.serial.load(Ordering::Relaxed) {
        Error::Closed
    } else {
        Error::Session
    }
}

fn open(options: &Options) -> Result<Session> {
    autoload::arm();
    if memory::is_short() {
        return Err(Error::NoMemory);
    }
    let process = match fork::heir_with(options) {
        Some(heir) => heir?,
        None => process::current_or_new()?,
    };
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    let opened = open_in(process, options);
    if let Err(error) = &opened {
        // Sinks and the thread have said more already.
        if !matches!(error, Error::NoSink | Error::Thread) {
            process.host.last_error.set(error.to_string());
        }
    }
    opened
}

fn open_in(process: &'static Process, options: &Options) -> Result<Session> {
    let config = Config::new(options)?;
    let mut control = process.control();
    let engine = process.engine_or_new(|| thread::quietly(|| Engine::new(&config, &process.host.last_error)))?;
    // A place first: it is the one thing that would have to be taken back.
    let place = process.sessions.iter().position(|place| place.load(Ordering::Relaxed) == 0);
    let place = place.ok_or(Error::TooManySessions)?;
    match &control.running {
        Some(running) if running.config.sinks != Sinks::NONE && !config.can_join(&running.config) => {
            return Err(Error::Conflict)
        }
        Some(_) => {
            if config.recover && config.sinks != Sinks::NONE {
                tidy(engine, &config);
            }
            control.join(engine, &config)?;
        }
        None => control.start(process, engine, config.clone(), None)?,
    }
    watch_thread(engine, &control);
    control.open += 1;
    control.configs.retain(|&(known, _)| known != place);
    control.configs.push((place, config));
    let serial = process.serial.fetch_add(1, Ordering::Relaxed);
    let handle = handle(process, serial, place);
    process.sessions[place].store(handle, Ordering::Release);
    set_off(engine, handle);
    Ok(Session(handle))
}

/// Has the writer told when the calling thread ends. Where there is no writer, a plugin that the library is linked into may be
/// unloaded, and the thread would run its code afterwards.
fn watch_thread(engine: &Engine, control: &Control) {
    if control.running.is_some() {
        register::watch_thread(engine);
    }
}

/// To be called under the process's lock.
fn set_off(engine: &Engine, handle: u64) {
    OFF.store(if engine.is_off() { handle } else { NO_HANDLE }, Ordering::Relaxed);
}

/// Lets the sessions go on that a forked child has taken over. Sinks that cannot start count as failed.
pub(crate) fn go_on(
    process: &'static Process,
    engine: &'static Engine,
    config: Config,
    inheritance: Option<Inheritance>,
    configs: Vec<(usize, Config)>,
) {
    let mut control = process.control();
    control.configs = configs;
    let open = process.sessions.iter().filter(|place| place.load(Ordering::Relaxed) != 0).count();
    control.open = open as u32;
    if inheritance.is_some() && control.start(process, engine, config, inheritance).is_err() {
        engine.status.stop_sinks();
    }
    watch_thread(engine, &control);
}

/// Closes a session that C has.
pub(crate) fn close(handle: u64) -> Result<()> {
    match fork::close_unused(handle) {
        Some(closed) => closed,
        None => find(handle)?.close(),
    }
}

impl Ref {
    /// Whether no sink is running, so that there is nothing to do: because the session has none, or because it was closed
    /// meanwhile, which `still_open` tells.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.engine.is_off()
    }

    /// A call that raced with the close of its session may or may not have been written, and says so. The closing side has
    /// made a barrier between ending the session and reading the records a last time.
    #[inline]
    pub fn still_open<T>(&self, value: T) -> Result<T> {
        self.engine.order();
        if self.place.load(Ordering::Relaxed) == self.handle {
            Ok(value)
        } else {
            Err(Error::Closed)
        }
    }

    /// What a call came to. One that failed because its session was closed meanwhile (which ends all ids, and the writer that
    /// makes room and answers) says that, and not what followed from it.
    #[inline]
    fn outcome<T>(&self, result: Result<T>) -> Result<T> {
        self.still_open(()).and(result)
    }

    #[inline]
    pub fn register<U: Source>(&self, code: &Code<'_, U>) -> Result<Id> {
        if self.is_idle() {
            return self.still_open(Id(0));
        }
        let status = &self.engine.status;
        if self.process.regions.are_watching() {
            self.process.regions.before_code(status, code.addr, code.size);
        }
        let registered = register::register(self.process, self.engine, code);
        if registered.is_err() && self.process.regions.are_watching() {
            self.process.regions.no_code(code.addr, code.size);
        }
        self.outcome(registered)
    }

    pub fn code_size(&self, id: Id) -> Result<u64> {
        self.outcome(self.engine.ids.size_of(id).ok_or(Error::UnknownId))
    }

    pub fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()> {
        if self.is_idle() {
            return self.still_open(());
        }
        let regions = &self.process.regions;
        let old = if regions.are_watching() { self.engine.ids.place_of(id) } else { None };
        if let Some((addr, size)) = old {
            regions.after_code(&self.engine.status, addr, size);
            regions.before_code(&self.engine.status, target.addr, size);
        }
        let moved = register::move_code(self.process, self.engine, id, target);
        if let (Some((addr, size)), Err(error)) = (old, &moved) {
            regions.no_code(target.addr, size);
            if *error != Error::UnknownId {
                regions.code_stays(addr, size);
            }
        }
        self.outcome(moved)
    }

    pub fn unregister(&self, id: Id) -> Result<()> {
        if self.is_idle() {
            return self.still_open(());
        }
        let status = &self.engine.status;
        if self.process.regions.are_watching() {
            if let Some((addr, size)) = self.engine.ids.place_of(id) {
                self.process.regions.after_code(status, addr, size);
            }
        }
        self.outcome(register::unregister(self.process, self.engine, id))
    }

    pub fn unregister_range(&self, addr: u64, size: u64) -> Result<()> {
        if self.is_idle() {
            return self.still_open(());
        }
        let status = &self.engine.status;
        if self.process.regions.are_watching() {
            self.process.regions.after_range(status, addr, size);
        }
        self.outcome(register::unregister_range(self.process, self.engine, addr, size))
    }

    pub fn flush(&self, timeout: Option<Duration>) -> Result<()> {
        match (self.is_idle(), self.engine.status.sinks_failed()) {
            (true, Sinks::NONE) => self.still_open(()),
            (true, _) => self.outcome(Err(Error::SinkFailed)),
            (false, _) => match self.engine.flush(timeout.unwrap_or(PATIENCE)) {
                // There is no writer any more, but not because somebody has closed.
                Err(_) if self.process.host.is_broken() => Err(Error::Internal),
                // Or the sinks were disabled meanwhile, which has written everything that could be.
                Err(Error::Closed) => self.outcome(self.engine.last_answer()),
                result => self.outcome(result),
            },
        }
    }

    /// Starts sinks for all sessions, with what this one has asked for when it was opened.
    pub fn enable(&self, sinks: Option<Sinks>) -> Result<()> {
        let mut control = self.process.control();
        self.still_open(())?;
        let place = (self.handle >> 8 & 0xff) as usize;
        let config = match control.configs.iter().find(|&&(known, _)| known == place) {
            Some((_, config)) => config.clone(),
            // Forked while another thread had the lock.
            None => {
                control.running.as_ref().map_or_else(|| Config::new(&Options::default()), |it| Ok(it.config.clone()))?
            }
        };
        if !config.late {
            return Err(Error::Forbidden);
        }
        if memory::is_short() {
            return Err(Error::NoMemory);
        }
        let default = if config.sinks == Sinks::NONE { sink::every() } else { config.sinks };
        let config = Config { sinks: sinks.unwrap_or(default), ..config.clone() };
        let enabled = control.enable(self.process, self.engine, config);
        watch_thread(self.engine, &control);
        set_off(self.engine, self.handle);
        self.forget_if_closed();
        enabled
    }

    /// A session that was closed meanwhile is not the one that is off.
    fn forget_if_closed(&self) {
        if self.still_open(()).is_err() {
            let _ = OFF.compare_exchange(self.handle, NO_HANDLE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Stops sinks for all sessions.
    pub fn disable(&self, sinks: Option<Sinks>) -> Result<()> {
        let mut control = self.process.control();
        self.still_open(())?;
        let disabled = control.disable(self.process, self.engine, sinks.unwrap_or(Sinks::ALL));
        set_off(self.engine, self.handle);
        self.forget_if_closed();
        disabled
    }

    pub fn close(&self) -> Result<()> {
        // One closer wins.
        let ended = self.place.compare_exchange(self.handle, 0, Ordering::SeqCst, Ordering::Relaxed);
        ended.map_err(|_| Error::Closed)?;
        // The one that is off may be a later one.
        let _ = OFF.compare_exchange(self.handle, NO_HANDLE, Ordering::Relaxed, Ordering::Relaxed);
        let mut control = self.process.control();
        control.open = control.open.saturating_sub(1);
        if control.open == 0 {
            control.stop(self.engine, false)
        } else if control.running.is_some() {
            // Under the lock: the writer does not end before it has answered.
            self.engine.flush(PATIENCE)
        } else {
            Ok(())
        }
    }

    pub fn stats(&self) -> Stats {
        let pool = &self.engine.pool;
        Stats {
            memory: pool.bytes_used(),
            memory_held: pool.bytes_held(),
            spool: pool.memory().state(),
            ..self.engine.status.stats()
        }
    }

    pub fn create_region(&self, wanted: &RegionOptions) -> Result<CodeRegion> {
        let status = &self.engine.status;
        fork::watch();
        let made = thread::quietly(|| self.process.regions.create(status, wanted))?;
        self.still_open(made).inspect_err(|_| {
            // Nobody learns of it.
            let _ = self.process.regions.release(status, made.exec);
        })
    }

    pub fn adopt_region(&self, addr: u64, size: u64) -> Result<()> {
        let status = &self.engine.status;
        let adopted = thread::quietly(|| self.process.regions.adopt(status, addr, size));
        let open = self.still_open(()).inspect_err(|_| {
            if adopted.is_ok() {
                // Nobody learns of it.
                let _ = thread::quietly(|| self.process.regions.release(status, addr));
            }
        });
        open.and(adopted)
    }

    pub fn grow_region(&self, start: u64, size: u64) -> Result<()> {
        self.outcome(thread::quietly(|| self.process.regions.grow(start, size)))
    }

    pub fn discard_region(&self, addr: u64, size: u64) -> Result<()> {
        // What was registered there before is not to come after.
        let _ = self.flush(None);
        self.outcome(thread::quietly(|| self.process.regions.discard(addr, size)))
    }

    pub fn release_region(&self, start: u64) -> Result<()> {
        // What goes wrong with other sinks is no reason to keep it.
        let _ = self.flush(None);
        let status = &self.engine.status;
        self.outcome(thread::quietly(|| self.process.regions.release(status, start)))
    }

    pub fn path(&self, sink: Sinks) -> Result<PathBuf> {
        // Whoever closes ends the session first and then asks for the lock: as long as it is open the sinks are not stopped.
        let _control = self.process.control();
        self.still_open(())?;
        if !self.engine.status.sinks().has(sink) {
            return Err(Error::NotRunning);
        }
        if sink == Sinks::REGION {
            return self.process.regions.last_path().ok_or(Error::NotRunning);
        }
        self.engine.status.path(sink).ok_or(Error::NotRunning)
    }
}

impl Session {
    /// Opens a session, and with the first one starts the sinks and the background thread; `jitsym_init` in C.
    pub fn open(options: &Options) -> Result<Session> {
        open(options)
    }

    /// Registers code: from now on samples in it belong to its name; `jitsym_register` in C.
    pub fn register(&self, code: &Code<'_>) -> Result<Id> {
        find(self.0)?.register(code)
    }

    /// Tells that code runs at another address now; `jitsym_move` in C.
    pub fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()> {
        find(self.0)?.move_code(id, target)
    }

    /// Tells that code is gone; `jitsym_unregister` in C.
    pub fn unregister(&self, id: Id) -> Result<()> {
        find(self.0)?.unregister(id)
    }

    /// Tells that all code with a byte in the range is gone; `jitsym_unregister_range` in C.
    pub fn unregister_range(&self, addr: u64, size: u64) -> Result<()> {
        find(self.0)?.unregister_range(addr, size)
    }

    /// Waits until everything registered before is in the files; `jitsym_flush` in C.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        find(self.0)?.flush(Some(timeout))
    }

    /// What has happened so far in this process, over all sessions; `jitsym_get_stats` in C. Registrations that are still on their way
    /// are not counted yet.
    ///
    /// ```
    /// use jitsym::{Bytes, Code, Options, Session, Sinks};
    /// use std::time::Duration;
    ///
    /// # let dir = std::env::temp_dir().join(format!("jitsym-doc-stats-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// # let options = Options { map_dir: Some(dir.clone()), jitdump_dir: Some(dir.clone()), ..Options::default() };
    /// # /*
    /// let options = Options::default();
    /// # */
    /// let session = Session::open(&options)?;
    /// let code = [0xc3_u8; 16];
    /// let id = session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(code.as_ptr() as u64, 16, "counted") })?;
    /// session.flush(Duration::from_secs(10))?;
    /// let stats = session.stats()?;
    /// assert_eq!((stats.registered, stats.live, stats.map_entries, stats.jitdump_records), (1, 1, 1, 1));
    /// assert!(stats.sinks_running.has(Sinks::MAP.with(Sinks::JITDUMP)));
    ///
    /// session.unregister(id)?;
    /// session.flush(Duration::from_secs(10))?;
    /// assert_eq!(session.stats()?.live, 0);
    /// session.close()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), jitsym::Error>(())
    /// ```
    pub fn stats(&self) -> Result<Stats> {
        Ok(find(self.0)?.stats())
    }

    /// Starts sinks in a running process; `jitsym_enable` in C.
    pub fn enable(&self, sinks: Option<Sinks>) -> Result<()> {
        find(self.0)?.enable(sinks)
    }

    /// Stops sinks in a running process; `jitsym_disable` in C.
    pub fn disable(&self, sinks: Option<Sinks>) -> Result<()> {
        find(self.0)?.disable(sinks)
    }

    /// Makes a region of code memory: a mapping of an ELF file that the library writes, so that every profiler that reads ELF files
    /// names the code in it with no further step; `jitsym_region_create` in C. Code in it is registered as elsewhere, with the
    /// address where it runs.
    ///
    /// If the file cannot be had, which [`last_error`] explains, the memory is there all the same, and code in it goes to the
    /// other sinks. It stays when the session is closed.
    ///
    /// ```
    /// use jitsym::{Bytes, Code, Options, RegionOptions, Session};
    ///
    /// # let dir = std::env::temp_dir().join(format!("jitsym-doc-region-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// # let options = Options { map_dir: Some(dir.clone()), jitdump_dir: Some(dir.clone()), ..Options::default() };
    /// # /*
    /// let options = Options::default();
    /// # */
    /// let session = Session::open(&options)?;
    /// let near = std::ptr::from_ref(&session) as u64;
    /// let region = session.create_region(&RegionOptions { size: 4096, max_size: 64 << 20, near, ..RegionOptions::default() })?;
    /// # #[cfg(target_arch = "x86_64")]
    /// let code = [0xb8, 42, 0, 0, 0, 0xc3]; // mov eax, 42; ret
    /// # #[cfg(not(target_arch = "x86_64"))]
    /// # let code = [0_u8; 4];
    /// // SAFETY: the region is that large, and nobody else writes to it or runs what is there.
    /// unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), region.write as *mut u8, code.len()) };
    /// let id = session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(region.exec, code.len() as u64, "answer") })?;
    /// # #[cfg(target_arch = "x86_64")] {
    /// // SAFETY: there is a function of this type.
    /// let answer = unsafe { std::mem::transmute::<*const u8, extern "C" fn() -> u32>(region.exec as *const u8) };
    /// assert_eq!(answer(), 42);
    /// # }
    /// session.unregister(id)?;
    /// // SAFETY: nobody runs anything there any more.
    /// unsafe { session.release_region(region.exec)? };
    /// session.close()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), jitsym::Error>(())
    /// ```
    pub fn create_region(&self, options: &RegionOptions) -> Result<CodeRegion> {
        find(self.0)?.create_region(options)
    }

    /// Makes memory that the runtime has a region, whole pages of it: a private mapping of an ELF file with the same bytes and
    /// protections takes its place; `jitsym_region_adopt` in C, where it is said what changes for the runtime.
    ///
    /// # Safety
    /// During the call nobody writes to the memory or changes its protection, on any thread: what is written meanwhile may be
    /// lost. Others may execute it.
    pub unsafe fn adopt_region(&self, addr: u64, size: u64) -> Result<()> {
        find(self.0)?.adopt_region(addr, size)
    }

    /// Makes a region with two views larger, at its end: up to `size` bytes in all. Nothing that is there moves;
    /// `jitsym_region_grow` in C.
    pub fn grow_region(&self, exec: u64, size: u64) -> Result<()> {
        find(self.0)?.grow_region(exec, size)
    }

    /// Gives whole pages of a region back, which read zero afterwards; `jitsym_region_discard` in C.
    ///
    /// # Safety
    /// Nobody runs code there, or has a reference to what lies there.
    pub unsafe fn discard_region(&self, addr: u64, size: u64) -> Result<()> {
        find(self.0)?.discard_region(addr, size)
    }

    /// Ends the region that begins here: one that was created is unmapped, one that was adopted becomes plain memory again, with the
    /// same bytes and protections; `jitsym_region_release` in C.
    ///
    /// # Safety
    /// Nobody runs code in memory that was created, or has a reference to what lies there, in either view. For memory that was
    /// adopted the same holds as for [`adopt_region`](Session::adopt_region).
    pub unsafe fn release_region(&self, exec: u64) -> Result<()> {
        find(self.0)?.release_region(exec)
    }

    /// The path of the file that a sink writes; `jitsym_path` in C.
    pub fn path(&self, sink: Sinks) -> Result<PathBuf> {
        find(self.0)?.path(sink)
    }

    /// Closes the session and says how it went; `jitsym_close` in C.
    pub fn close(self) -> Result<()> {
        close(self.0)
        // Dropping it closes again, which is refused.
    }

    /// The handle for C, which now has to close the session.
    pub(crate) fn into_handle(self) -> u64 {
        let handle = self.0;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// Text of the last failure in this process; empty if there was none.
pub fn last_error() -> String {
    process::current().map(|process| process.host.last_error.get()).unwrap_or_default()
}

/// Writes what is pending when the process exits with a session open, for as long as closing would. What is not written then
/// stays in the spool, and the write in hand is waited for, so that it is not cut; but a disk that hangs does not hang the exit
/// for ever. Once everything is written the spool has done its service.
pub(crate) fn flush_at_exit() {
    let Ok(process) = process::current() else { return };
    let Some(engine) = process.engine() else { return };
    if !engine.urgent.exit() {
        return wait_for_exit();
    }
    // Also if nothing runs: what another thread starts now writes nothing.
    engine.requests().exiting = Some(thread::id());
    let asked = if engine.is_off() { Err(Error::NotRunning) } else { engine.flush_at_exit(PATIENCE) };
    match asked {
        Err(Error::Timeout) => _ = engine.status.gate.shut(PATIENCE),
        // Unless a thread was stopped in the middle of a call.
        Ok(()) | Err(Error::SinkFailed) if !engine.is_exit_whole() => {}
        Ok(()) | Err(Error::SinkFailed | Error::Closed | Error::NotRunning) => {
            process.remove_files_at_exit();
            if !process.host.is_broken() && !engine.has_left_unread() {
                engine.pool.memory().remove_spool();
            }
        }
        Err(_) => {}
    }
    engine.urgent.exit_is_over();
}

/// If the process exits by another thread too, waits until that has written what is pending: the first one that has no exit handlers
/// left ends the process.
pub(crate) fn wait_for_exit() {
    let Some(engine) = process::current_engine() else { return };
    let end = Instant::now() + 2 * PATIENCE;
    while engine.urgent.is_exit_under_way(thread::id()) && Instant::now() < end {
        thread::sleep_micros(200);
    }
}

/// Has everything that was registered before written, from a signal handler, whatever that has interrupted;
/// `jitsym_flush_from_signal` in C.
pub fn flush_from_signal(timeout: Duration) -> Result<()> {
    keeping_errno(|| ask_from_signal(timeout))
}

fn ask_from_signal(timeout: Duration) -> Result<()> {
    let process =
        process::current().map_err(|error| if error == Error::Session { Error::NotRunning } else { error })?;
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    let engine = process.engine().ok_or(Error::NotRunning)?;
    engine.urgent.flush(timeout, || engine.wake())
}
