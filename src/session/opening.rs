//! Opens sessions.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::api::error::{Error, Result};
use crate::api::options::{Config, Options, Sinks};
use crate::queue::file_thread;
use crate::queue::shared::Shared;
use crate::session::handle::{self, new_handle, set_off};
use crate::session::lifecycle::{self, Lifecycle, STOP_TIMEOUT};
use crate::session::process::{self, Process};
use crate::session::register::watch_thread_if_running;
use crate::session::{autoload, explain, fork};
use crate::sys::{dynamic_symbols, reserve, thread};
use crate::writer::recover;

/// Opens a session in this process, and returns the session's handle. A forked child continues its parent's sessions before it
/// opens the new session.
pub fn open(options: &Options) -> Result<u64> {
    dynamic_symbols::look_up();
    autoload::arm();
    if reserve::is_short() {
        return Err(Error::NoMemory);
    }
    let process = match fork::inheritor_with(options) {
        Some(inheritor) => inheritor?,
        None => process::current_or_new()?,
    };
    if !process.host.page.kept_by_kernel {
        // Before Linux 4.14, a child detects the fork only by the fork handler, and a child of a raw clone system call never
        // detects the fork.
        fork::watch();
    }
    if process.host.is_broken() {
        return Err(Error::Internal);
    }
    explain::opening();
    let opened = open_in(process, options);
    explain::opened(&opened.as_ref().map(|_| process.shared().map(|shared| &*shared.status)).map_err(|error| *error));
    if let Err(error) = &opened {
        // For `NoSink` and `Thread`, a text with more details is already set.
        if !matches!(error, Error::NoSink | Error::Thread) {
            process.host.last_error.set(error.to_string());
        }
    }
    opened
}

fn open_in(process: &'static Process, options: &Options) -> Result<u64> {
    let config = Config::new(options)?;
    explain::decided(&config);
    if config.starts_writer() || config.bridge {
        // No lock may be held here.
        dynamic_symbols::keep_this_loaded();
        fork::watch();
    }
    let end = Instant::now() + STOP_TIMEOUT;
    process.with_lifecycle(end, |lifecycle| open_alone(process, lifecycle, config))
}

/// Lets the session use the running writer, or starts a writer if none runs.
fn join_or_start(
    process: &'static Process,
    shared: &'static Shared,
    lifecycle: &mut Lifecycle,
    config: &Config,
) -> Result<()> {
    match &lifecycle.running {
        Some(running) if !config.can_join(&running.config, lifecycle::started(shared)) => Err(Error::Conflict),
        Some(_) => {
            if config.recover && config.sinks != Sinks::NONE {
                let (status, config) = (shared.status.clone(), config.clone());
                file_thread::run_for(lifecycle.left(), move || recover::tidy(&status, &config, true));
            }
            lifecycle.join(shared, config)
        }
        None => lifecycle.start(process.parts(shared), config.clone(), None),
    }
}

/// Opens the session while no other call opens or closes a session.
fn open_alone(process: &'static Process, lifecycle: &mut Lifecycle, config: Config) -> Result<u64> {
    let shared = process.shared_or_new(|| thread::quietly(|| Shared::new(&config, &process.host.last_error)))?;
    lifecycle.finish_earlier(shared)?;
    if lifecycle.open == 0 && lifecycle.running.is_some() {
        // The call that started the running writer timed out, and opened no session.
        if lifecycle.stop(shared, false) == Err(Error::Timeout) {
            return Err(Error::Timeout);
        }
    }
    // A free entry of `sessions` is looked up first, so that a call that finds none fails before there is anything to undo.
    let place = process.sessions.iter().position(|place| place.load(Ordering::Relaxed) == 0);
    let place = place.ok_or(Error::TooManySessions)?;
    let forbids = !config.threads && !lifecycle.has_thread() && !thread::are_forbidden();
    if forbids {
        thread::forbid(true);
    }
    join_or_start(process, shared, lifecycle, &config).inspect_err(|_| {
        if forbids {
            thread::forbid(false);
        }
    })?;
    watch_thread_if_running(shared, lifecycle);
    lifecycle.open += 1;
    process.configs.set(place, config);
    // The lock of the lifecycle is held.
    let serial = process.serial.load(Ordering::Relaxed);
    process.serial.store(handle::after(serial), Ordering::Relaxed);
    let handle = new_handle(process, serial, place);
    process.sessions[place].store(handle, Ordering::Release);
    set_off(shared, lifecycle, handle);
    Ok(handle)
}
