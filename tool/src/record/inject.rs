//! Adds the code of jitdumps to a recording with `perf inject --jit`.
//!
//! perf writes an object for each function into the directory of the jitdump, and follows links there. Other users may write to
//! that directory. As root, perf even enters the mount namespace of the process. So perf gets copies in private directories,
//! and cannot enter a namespace. In the recording that perf reads, jitdumps without a copy are renamed.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use jitsym::format::file_names::copies_of;

use super::contents::Contents;
use super::perf::Perf;
use super::{command_line, data, packed, script};
use crate::private::PrivateDir;

/// perf with libdw unwinds only through objects whose paths begin with `/tmp/jitted-`.
const DIR: &str = "/tmp";
/// Appended to the name of a jitdump that perf must not find.
const LEFT_OUT: &[u8] = b" (left out)";

/// Copies of jitdumps, by process and path.
#[derive(Default)]
pub struct Copies {
    dirs: Vec<PrivateDir>,
    paths: HashMap<(u32, String), PathBuf>,
}

impl Copies {
    pub fn is_empty(&self) -> bool {
        self.dirs.is_empty()
    }

    /// Copies an open jitdump into a private directory. `out`: the path of the final recording.
    pub fn add(&mut self, pid: u32, path: &str, file: &File, out: &Path) -> io::Result<()> {
        let start = copies_of(pid);
        let dir = PrivateDir::new(Path::new(DIR), &start)
            .or_else(|_| PrivateDir::new(&std::path::absolute(out.parent().unwrap_or(Path::new("")))?, &start))?;
        let to = dir.path().join(script::file_name(path));
        copy(file, &to)?;
        self.paths.insert((pid, path.to_owned()), to);
        self.dirs.push(dir);
        Ok(())
    }

    /// Adds frame loads for packed code that is in a stack of the recording, outside of all mappings.
    pub fn give_frame_loads(&self, raw: &Path, mapped: &[Range<u64>]) {
        let code = packed::Space::outside(self.paths.values().flat_map(|path| packed::code_of(path)).collect());
        let mut words = BTreeSet::new();
        let found = data::words_of_samples(raw, &mut |word| {
            if code.is_taken(word) {
                words.insert(word);
            }
        });
        if found.is_ok() {
            self.paths.values().for_each(|path| packed::give_frame_loads(path, mapped, &words));
        }
    }

    /// Has perf write a recording that contains the copied jitdumps. Returns the directories of the objects, or none if perf
    /// has added nothing.
    pub fn inject(self, perf: &Perf, raw: &Path, work: &PrivateDir, to: &Path) -> Result<Vec<PrivateDir>, String> {
        let renamed = work.path().join("renamed");
        let new = |pid: u32, name: &[u8]| {
            let text = String::from_utf8_lossy(name).into_owned();
            let file = script::file_name(&text);
            let is_dump = file.starts_with("jit-") && file.ends_with(".dump");
            is_dump.then(|| match self.paths.get(&(pid, text)) {
                Some(copy) => copy.as_os_str().as_encoded_bytes().to_vec(),
                None => [name, LEFT_OUT].concat(),
            })
        };
        data::rename(raw, &renamed, &new).map_err(|error| format!("the recording {error}"))?;
        let mut inject = perf.command("inject");
        inject.arg("--jit").arg("-i").arg(&renamed).arg("-o").arg(to);
        enters_no_namespace(&mut inject);
        perf.output(&mut inject)?;
        // The renamed recording is no longer needed. The new recording lacks only the recorded command.
        let _ = std::fs::remove_file(&renamed);
        let _ = command_line::carry_over(raw, to);
        let is_injected = Contents::read(perf, to)?.is_injected();
        Ok(if is_injected { self.dirs } else { Vec::new() })
    }
}

/// Copies the present contents of a file. A sparse file of another user is refused, because its copy could fill the disk.
fn copy(from: &File, to: &Path) -> io::Result<()> {
    let data = from.metadata()?;
    // SAFETY: a system call with an open descriptor.
    let hole = unsafe { libc::lseek(from.as_raw_fd(), 0, libc::SEEK_HOLE) };
    if data.uid() != jitsym::sys::process::user() && u64::try_from(hole).is_ok_and(|hole| hole < data.len()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "has holes"));
    }
    let (mut from, mut to) = (from, File::create_new(to)?);
    io::Seek::rewind(&mut from)?;
    io::copy(&mut io::Read::take(from, data.len()), &mut to)?;
    Ok(())
}

/// Blocks the system call `setns`, so that perf stays in its namespaces.
fn enters_no_namespace(command: &mut Command) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // The number of the system call is the first field of the data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_setns as u32) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let restrict = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: two system calls. The second one reads the program, which is valid during the call.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
        };
        // Only root could enter a namespace.
        if failed && jitsym::sys::process::user() == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls and nothing else: it allocates only for an error of a number, which allocates nothing.
    unsafe { command.pre_exec(restrict) };
}
