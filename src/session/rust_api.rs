//! The Rust interface of a session.

use std::path::PathBuf;
use std::time::Duration;

use crate::api::code::{Code, MoveTarget};
use crate::api::error::Result;
use crate::api::options::{Options, Sinks, Wanted};
use crate::api::Id;
use crate::queue::status::Stats;
use crate::session::calls::{close, find};
use crate::session::config::environment_asks_for_bridge;
use crate::session::explain::refused;
use crate::session::wanted::wanted;
use crate::session::{bridge, opening};
use crate::sink::region::{CodeRegion, RegionOptions};
use crate::sys::{panic_guard, valgrind};

/// An open session, which is closed when this value is dropped.
#[derive(Debug)]
pub struct Session(u64);

/// Opens a session, and starts the bridge if the options or the environment request the bridge. Returns the session's handle.
pub(crate) fn open(options: &Options) -> Result<u64> {
    let handle = opening::open(options)?;
    if options.bridge || environment_asks_for_bridge() {
        bridge::start(options.bridge.then_some(options));
    }
    Ok(handle)
}

/// Runs a call of the Rust interface. As in C, a refused call is counted, and [`last_error`] returns the reason.
#[inline]
fn told<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    valgrind::without_races(|| panic_guard::as_one_call(|| body().inspect_err(|&error| refused(error))))
}

impl Session {
    /// Opens a session; `jitsym_init` in C. The first session starts the sinks and the background thread.
    pub fn open(options: &Options) -> Result<Session> {
        told(|| open(options).map(Session))
    }

    /// Registers code: from now on profilers attribute samples in the code to its name; `jitsym_register` in C.
    ///
    /// If this call returns [`Error::Timeout`](crate::Error::Timeout), [`Error::SinkFailed`](crate::Error::SinkFailed) or
    /// [`Error::NoMemory`](crate::Error::NoMemory), the code may be registered although the sink for the unwinder or for
    /// valgrind does not have the code yet. [`flush`](Session::flush) waits until this sink has the code.
    /// [`unregister_range`](Session::unregister_range) unregisters such code.
    pub fn register(&self, code: &Code<'_>) -> Result<Id> {
        told(|| {
            let session = find(self.0)?;
            let id = session.register(code, None).map_err(|error| error.of_code(code.name))?;
            if !code.more {
                session.known()?;
            }
            Ok(id)
        })
    }

    /// Reports that code now runs at another address; `jitsym_move` in C.
    pub fn move_code(&self, id: Id, target: &MoveTarget<'_>) -> Result<()> {
        told(|| find(self.0)?.move_code(id, target))
    }

    /// Reports that code is no longer in use; `jitsym_unregister` in C.
    pub fn unregister(&self, id: Id) -> Result<()> {
        told(|| find(self.0)?.unregister(id))
    }

    /// Unregisters all code that has a byte in the range; `jitsym_unregister_range` in C.
    pub fn unregister_range(&self, addr: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.unregister_range(addr, size, false))
    }

    /// Does the same as [`unregister_range`](Session::unregister_range), for memory that the caller unmaps next. In C, this is
    /// the flag `JITSYM_RANGE_UNMAP`.
    ///
    /// # Safety
    /// Until the caller unmaps the range, no thread reads, writes or executes the pages that lie completely in the range. The
    /// caller unmaps these pages before anything else is mapped there.
    pub unsafe fn unregister_mapping(&self, addr: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.unregister_range(addr, size, true))
    }

    /// Returns the parts of a registration that the sinks use at present (in C: `jitsym_wanted`). The host can omit the parts that
    /// no sink wants. The call takes no lock, makes no system call and changes nothing, even in a forked child.
    ///
    /// ```
    /// use jitsym::{Options, Session, Sinks, Wanted};
    ///
    /// # let dir = std::env::temp_dir().join(format!("jitsym-doc-wanted-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// let session = Session::open(&Options { sinks: Some(Sinks::NONE), ..Options::default() })?;
    /// assert_eq!(session.wanted(), Wanted::default());
    /// session.close()?;
    /// let map = Options { sinks: Some(Sinks::MAP), map_dir: Some(dir.clone()), ..Options::default() };
    /// let session = Session::open(&map)?;
    /// let wanted = session.wanted();
    /// assert!(wanted.code && !wanted.lines && !wanted.unwind && !wanted.adopt);
    /// session.close()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), jitsym::Error>(())
    /// ```
    pub fn wanted(&self) -> Wanted {
        wanted(self.0)
    }

    /// Waits until everything that was registered before this call is in the files; `jitsym_flush` in C.
    pub fn flush(&self, timeout: Duration) -> Result<()> {
        told(|| find(self.0)?.flush(Some(timeout)))
    }

    /// Returns the counters of this process, for all its sessions together; `jitsym_get_stats` in C. Registrations that the
    /// writer has not read yet are not counted.
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
        told(|| Ok(find(self.0)?.stats()))
    }

    /// Starts sinks in a running process; `jitsym_enable` in C.
    pub fn enable(&self, sinks: Option<Sinks>) -> Result<()> {
        told(|| find(self.0)?.enable(sinks))
    }

    /// Stops sinks in a running process; `jitsym_disable` in C.
    pub fn disable(&self, sinks: Option<Sinks>) -> Result<()> {
        told(|| find(self.0)?.disable(sinks))
    }

    /// Makes a region of code memory: a mapping of an ELF file that the library writes (`jitsym_region_create` in C). Every
    /// profiler that reads ELF files can show the names of the code in a region. Code in a region is registered like other
    /// code, with the address at which it runs.
    ///
    /// If the file cannot be made, the region still gets its memory, and [`last_error`](crate::last_error) returns the reason.
    /// Sinks that do not need this file still report the code in the region. The region stays when the session is closed.
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
    /// // SAFETY: the code fits into the region, and nobody else writes to the region or runs code in it.
    /// unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), region.write as *mut u8, code.len()) };
    /// let id = session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(region.exec, code.len() as u64, "answer") })?;
    /// # #[cfg(target_arch = "x86_64")] {
    /// // SAFETY: the region begins with a function of this type.
    /// let answer = unsafe { std::mem::transmute::<*const u8, extern "C" fn() -> u32>(region.exec as *const u8) };
    /// assert_eq!(answer(), 42);
    /// # }
    /// session.unregister(id)?;
    /// // SAFETY: no thread runs code in the region any more.
    /// unsafe { session.release_region(region.exec)? };
    /// session.close()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), jitsym::Error>(())
    /// ```
    pub fn create_region(&self, options: &RegionOptions) -> Result<CodeRegion> {
        told(|| find(self.0)?.create_region(options))
    }

    /// Turns whole pages of the runtime's memory into a region; `jitsym_region_adopt` in C. The description of the C function
    /// explains the effects. A private mapping of an ELF file, with the same bytes and protections, replaces the pages.
    ///
    /// # Safety
    /// During the call no thread writes to the memory or changes its protection. Otherwise writes may be lost. Threads may
    /// execute the memory.
    pub unsafe fn adopt_region(&self, addr: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.adopt_region(addr, size))
    }

    /// Enlarges a region to `size` bytes in all; `jitsym_region_grow` in C. The region must have two views. The new memory
    /// is added at the region's end, and existing contents keep their addresses.
    pub fn grow_region(&self, exec: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.grow_region(exec, size))
    }

    /// Returns the memory of whole pages of a region to the system; `jitsym_region_discard` in C. Afterwards the pages read as
    /// zero.
    ///
    /// # Safety
    /// No thread runs code in these pages, and no reference to anything in these pages exists.
    pub unsafe fn discard_region(&self, addr: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.discard_region(addr, size))
    }

    /// Ends the region that begins at `exec`; `jitsym_region_release` in C. A created region is unmapped. An adopted region
    /// becomes plain memory again, with the same bytes and protections.
    ///
    /// # Safety
    /// If the region was created: no thread runs code in the region's memory, and no reference to anything in either view of
    /// this memory exists. If the region was adopted: the conditions of [`adopt_region`](Session::adopt_region) hold.
    pub unsafe fn release_region(&self, exec: u64) -> Result<()> {
        told(|| find(self.0)?.release_region(exec))
    }

    /// Allocates code memory: a piece of one of the library's regions, at least `size` bytes long; `jitsym_alloc` in C.
    /// `alignment` is a power of two up to 4096, or 0. If `near` is not 0, a call instruction at `near` can reach the piece
    /// with a displacement of 32 bits. The piece stays when the session is closed.
    ///
    /// ```
    /// use jitsym::{Bytes, Code, Options, Session};
    ///
    /// # let dir = std::env::temp_dir().join(format!("jitsym-doc-alloc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// # let options = Options { map_dir: Some(dir.clone()), jitdump_dir: Some(dir.clone()), ..Options::default() };
    /// # /*
    /// let options = Options::default();
    /// # */
    /// let session = Session::open(&options)?;
    /// let code = [0x90_u8; 100];
    /// let piece = session.alloc(100, 0, 0)?;
    /// assert!(piece.size >= 100);
    /// // SAFETY: the code fits into the piece, and nobody else uses the piece.
    /// unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), piece.write as *mut u8, code.len()) };
    /// session.register(&Code { bytes: Bytes::Here(&code), ..Code::new(piece.exec, 100, "a_hundred") })?;
    /// // SAFETY: no thread runs code in the piece.
    /// unsafe { session.free(piece.exec)? };
    /// session.close()?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), jitsym::Error>(())
    /// ```
    pub fn alloc(&self, size: u64, alignment: u64, near: u64) -> Result<CodeRegion> {
        told(|| find(self.0)?.alloc(size, alignment, near))
    }

    /// Shortens a piece to its first `size` bytes, rounded up to a multiple of 64; `jitsym_shrink` in C. No code may be
    /// registered in the rest of the piece.
    ///
    /// # Safety
    /// No thread runs code in the rest of the piece, and no reference to anything in the rest exists.
    pub unsafe fn shrink(&self, exec: u64, size: u64) -> Result<()> {
        told(|| find(self.0)?.shrink(exec, size))
    }

    /// Frees a piece, and unregisters the code in it; `jitsym_free` in C.
    ///
    /// # Safety
    /// No thread runs code in the piece, and no reference to anything in the piece exists.
    pub unsafe fn free(&self, exec: u64) -> Result<()> {
        told(|| find(self.0)?.free(exec))
    }

    /// Returns the path of the file that a sink writes; `jitsym_path` in C.
    pub fn path(&self, sink: Sinks) -> Result<PathBuf> {
        told(|| find(self.0)?.path(sink))
    }

    /// Closes the session, and returns an error if not everything could be written; `jitsym_close` in C.
    pub fn close(self) -> Result<()> {
        told(|| close(self.0))
        // When the session is dropped here, `drop` closes it again, which fails without effect.
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}
