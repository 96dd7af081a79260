//! A `/tmp` and a `/dev/shm` for each test: no test sees the files of another, and none leaves files on the machine.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

/// The directories that each test has for itself.
const OWN: [&str; 2] = ["/tmp", "/dev/shm"];

/// Makes such directories.
pub struct Private {
    /// Where they lie, for each of `OWN`. None: this user may not mount anything.
    above: Option<[PathBuf; 2]>,
    /// What lies in `/tmp`, and tests need: the source tree, or the home directory.
    kept: Vec<PathBuf>,
    count: AtomicUsize,
}

/// Those of one test. They are removed with this value.
pub struct Rooms(Vec<PathBuf>);

impl Private {
    pub fn new(scratch: &Path) -> Result<Self> {
        let mut kept = vec![crate::program::root().to_path_buf()];
        let variables = ["HOME", "CARGO_HOME", "RUSTUP_HOME", "XDG_CACHE_HOME", "CARGO_TARGET_DIR"];
        kept.extend(variables.iter().filter_map(std::env::var_os).map(PathBuf::from));
        kept.retain(|path| path.is_dir() && path.starts_with("/tmp"));
        // A process may have several runs, each with a scratch directory of its own.
        let run = scratch.file_name().unwrap_or_default().to_string_lossy();
        let above = [scratch.join("tmp"), PathBuf::from(format!("/dev/shm/jitsym-tests-{}-{run}", std::process::id()))];
        let mut private = Private { above: Some(above), kept, count: AtomicUsize::new(0) };
        let mut probe = Command::new("true");
        let allowed = private.rooms(&mut probe).is_ok_and(|_rooms| probe.status().is_ok_and(|status| status.success()));
        if !allowed {
            println!("No mounts are allowed here, so the tests share /tmp and /dev/shm with the machine, and may leave files there.");
            private.remove();
            private.above = None;
        }
        Ok(private)
    }

    /// Has the command run with directories of its own.
    pub fn rooms(&self, command: &mut Command) -> Result<Rooms> {
        let Some(above) = &self.above else { return Ok(Rooms(Vec::new())) };
        let number = self.count.fetch_add(1, Ordering::Relaxed).to_string();
        let rooms = Rooms(above.iter().map(|above| above.join(&number)).collect());
        let mut mounts = Vec::new();
        for path in &self.kept {
            let place = rooms.0[0].join(path.strip_prefix("/tmp")?);
            fs::create_dir_all(&place)?;
            mounts.push((c_string(path)?, c_string(&place)?));
        }
        for (room, place) in rooms.0.iter().zip(OWN) {
            fs::create_dir_all(room)?;
            fs::set_permissions(room, Permissions::from_mode(0o1777))?;
            mounts.push((c_string(room)?, c_string(Path::new(place))?));
        }
        let dir = command.get_current_dir().map(c_string).transpose()?;
        let enter = move || {
            // SAFETY: system calls with strings that live as long as the closure; it runs between fork and exec.
            let ok = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)
                    && mounts.iter().all(|(from, to)| mount(from, to, libc::MS_BIND | libc::MS_REC))
                    // The directory may be one of those that were mounted.
                    && dir.as_ref().is_none_or(|dir| libc::chdir(dir.as_ptr()) == 0)
            };
            if ok {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        };
        // SAFETY: it makes system calls and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Ok(rooms)
    }

    /// Removes the directories of all tests.
    pub fn remove(&self) {
        for above in self.above.iter().flatten() {
            let _ = fs::remove_dir_all(above);
        }
    }
}

fn c_string(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// SAFETY: as for any system call that takes strings.
unsafe fn mount(from: &std::ffi::CStr, to: &std::ffi::CStr, flags: libc::c_ulong) -> bool {
    // SAFETY: the strings live for the call.
    unsafe { libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), flags, std::ptr::null()) == 0 }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        for room in &self.0 {
            let _ = fs::remove_dir_all(room);
        }
    }
}
