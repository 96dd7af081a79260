//! Opens files that another user may have placed or may change. Opening never blocks, opens no device, and follows no untrusted
//! link.

use std::ffi::CString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jitsym::sys::file::OURS;
use jitsym::sys::process;
use memmap2::MmapMut;

/// The maximum number of bytes that are read from a stream of unknown length, even if more memory is free.
const STREAM_MOST: u64 = 4 << 30;
const MIB: u64 = 1 << 20;

fn refuse<T>(kind: io::ErrorKind, why: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(kind, why.into()))
}

/// Opens a file that the user has named, or a file beside such a file. Links are followed, because the user made them.
pub fn named(path: &Path) -> io::Result<File> {
    // Opening a device can have side effects.
    check_regular(&fs::metadata(path)?)?;
    checked(OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?)
}

/// Opens a file that belongs to a process by its mappings or its name. Any user who can write to the directory may have
/// chosen the file. So the file must be a regular file. The file must have no second name, or the mark of the library. If the
/// process is alive, the file must belong to one of its users.
pub fn of_process(path: &Path, pid: u32) -> io::Result<File> {
    let file = of_anyone(path)?;
    let owner = file.metadata()?.uid();
    let is_theirs = users(pid).is_none_or(|users| users.contains(&owner));
    if !is_theirs && owner != process::user() && owner != 0 {
        return refuse(io::ErrorKind::PermissionDenied, "belongs to another user than the process");
    }
    Ok(file)
}

/// Like `of_process`, but any user may own the file.
pub fn of_anyone(path: &Path) -> io::Result<File> {
    let file = match inside(path) {
        Some((root, below)) => match open_below(&root, &below) {
            // This happens before Linux 5.6, or in a sandbox that refuses this system call.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => open_here(path)?,
            other => other?,
        },
        None => open_here(path)?,
    };
    let data = file.metadata()?;
    if data.nlink() != 1 && data.mode() & OURS == 0 {
        return refuse(io::ErrorKind::PermissionDenied, "has a second name (hard link)");
    }
    Ok(file)
}

/// The possible paths of a file that has this path in a process: the path here, and the path below the root directory of the
/// process.
pub fn places(pid: u32, path: &str) -> [PathBuf; 2] {
    [path.into(), format!("/proc/{pid}/root{path}").into()]
}

/// Opens a file that the user has named, if the path does not end in a link.
pub fn unlinked(path: &Path) -> io::Result<File> {
    open_here(path)
}

fn open_here(path: &Path) -> io::Result<File> {
    check_regular(&fs::symlink_metadata(path)?)?;
    checked(OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?)
}

const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;

fn check_regular(data: &Metadata) -> io::Result<()> {
    match data.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_symlink() => {
            refuse(io::ErrorKind::InvalidInput, "is a symbolic link, which is not followed here")
        }
        _ => refuse(io::ErrorKind::InvalidInput, "is not a file"),
    }
}

/// Checks the opened file, because another user may have replaced the file that was examined before.
fn checked(file: File) -> io::Result<File> {
    check_regular(&file.metadata()?)?;
    Ok(file)
}

/// The real, effective, saved and file system users of a process; `None` if there is no such process.
pub fn users(pid: u32) -> Option<Vec<u32>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    Some(users.split_whitespace().filter_map(|user| user.parse().ok()).collect())
}

/// Splits a path into `/proc/PID/root` and the path below it.
fn inside(path: &Path) -> Option<(CString, CString)> {
    let mut parts = path.to_str()?.strip_prefix("/proc/")?.splitn(3, '/');
    let (pid, "root", below) = (parts.next()?, parts.next()?, parts.next()?) else { return None };
    let root = format!("/proc/{}/root", pid.parse::<u32>().ok()?);
    Some((CString::new(root).ok()?, CString::new(below).ok()?))
}

/// Opens a file below the root directory of a process. Absolute links are resolved as the process would resolve them.
fn open_below(root: &CString, below: &CString) -> io::Result<File> {
    // SAFETY: the path is a C string.
    let dir = unsafe { libc::open(root.as_ptr(), libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if dir < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was opened here, and nobody else has it.
    let dir = unsafe { File::from_raw_fd(dir) };
    // SAFETY: zero is a valid value of each field.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // Opened with `O_PATH` first, so that a FIFO or a device is examined without being opened.
    for flags in [libc::O_PATH | libc::O_NOFOLLOW, FLAGS] {
        how.flags = flags as u64;
        // SAFETY: the path is a C string, and the struct has the size that is passed.
        let file = unsafe {
            libc::syscall(libc::SYS_openat2, dir.as_raw_fd(), below.as_ptr(), &raw const how, size_of_val(&how))
        };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let file = checked(unsafe { File::from_raw_fd(file as i32) })?;
        if flags == FLAGS {
            return Ok(file);
        }
    }
    refuse(io::ErrorKind::NotFound, "is not there")
}

/// The maximum number of bytes that are read into memory: half of the memory available to this program.
pub fn most() -> u64 {
    let number = |path: &str, start: &str| {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(start))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let free = number("/proc/meminfo", "MemAvailable:").map(|free| free << 10);
    // The memory limit of a container.
    let of_group = number("/sys/fs/cgroup/memory.max", "")
        .map(|most| most.saturating_sub(number("/sys/fs/cgroup/memory.current", "").unwrap_or(0)));
    let limits = [process::limit(libc::RLIMIT_AS), process::limit(libc::RLIMIT_DATA)];
    [free, of_group].into_iter().chain(limits).flatten().min().unwrap_or(STREAM_MOST) / 2
}

fn too_large<T>(most: u64) -> io::Result<T> {
    refuse(io::ErrorKind::FileTooLarge, format!("holds more than {} MiB, and there is no memory for that", most / MIB))
}

/// Reads a whole file at its present length, if there is enough memory.
pub fn read(file: &File) -> io::Result<Vec<u8>> {
    let (len, most) = (file.metadata()?.len(), most());
    if len > most {
        return too_large(most);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a part of a file, if the file has the whole part and there is enough memory.
pub fn read_at(file: &File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let most = most();
    if len > most {
        return too_large(most);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
    bytes.resize(len as usize, 0);
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// Reads a stream to its end, if it ends and there is enough memory.
pub fn read_stream(from: impl Read) -> io::Result<Vec<u8>> {
    let most = most().min(STREAM_MOST);
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return too_large(most);
    }
    Ok(bytes)
}

/// Reads a sparse file. Only the written parts need time and memory. The files of regions and of `jitsym inject` can have
/// long holes.
pub fn read_sparse(file: &File, len: u64) -> io::Result<MmapMut> {
    let mut bytes = MmapMut::map_anon(len as usize)?;
    let seek = |from: u64, whence| {
        // SAFETY: a system call with an open descriptor.
        let at = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) };
        u64::try_from(at).map_or(len, |at| at.min(len))
    };
    let mut end = 0;
    while end < len {
        let start = seek(end, libc::SEEK_DATA);
        end = seek(start, libc::SEEK_HOLE).max(start);
        file.read_exact_at(&mut bytes[start as usize..end as usize], start)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_files() {
        let dir = crate::private::PrivateDir::new(&std::env::temp_dir(), "jitsym-open-").unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "x").unwrap();
        let pid = std::process::id();
        assert!(named(&path("file")).is_ok() && of_process(&path("file"), pid).is_ok());
        symlink(path("file"), path("link")).unwrap();
        assert!(named(&path("link")).is_ok(), "it is the user's");
        assert!(of_process(&path("link"), pid).is_err_and(|error| error.to_string().contains("symbolic link")));
        fs::hard_link(path("file"), path("second")).unwrap();
        assert!(named(&path("second")).is_ok());
        assert!(of_process(&path("second"), pid).is_err_and(|error| error.to_string().contains("second name")));
        let name = CString::new(path("fifo").as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [path("fifo"), dir.path().to_owned(), "/dev/zero".into()] {
            for opened in [named(&path), of_process(&path, pid)] {
                assert!(opened.is_err_and(|error| error.to_string() == "is not a file"), "{}", path.display());
            }
        }
    }

    /// The path is resolved below the root of the process, and a link in the path does not lead out of that root.
    #[test]
    fn below_a_root() {
        let dir = crate::private::PrivateDir::new(&std::env::temp_dir(), "jitsym-root-").unwrap();
        let root = |name: &str| Path::new("/proc/self/root").join(dir.path().join(name).strip_prefix("/").unwrap());
        fs::write(dir.path().join("file"), "x").unwrap();
        symlink(dir.path(), dir.path().join("here")).unwrap();
        let of_this = |name: &str| {
            let path = root(name).display().to_string().replace("self", &std::process::id().to_string());
            of_process(Path::new(&path), std::process::id())
        };
        assert!(of_this("file").is_ok() && of_this("here/file").is_ok());
        symlink("file", dir.path().join("link")).unwrap();
        assert!(of_this("link").is_err_and(|error| error.to_string().contains("symbolic link")));
        assert!(of_this("missing").is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn no_more_than_there_is_memory_for() {
        let dir = crate::private::PrivateDir::new(&std::env::temp_dir(), "jitsym-most-").unwrap();
        let path = dir.path().join("sparse");
        // The file is larger than the memory of any machine, and has no block on the disk.
        File::create(&path).unwrap().set_len(1 << 43).unwrap();
        assert!(read(&named(&path).unwrap()).is_err_and(|error| error.kind() == io::ErrorKind::FileTooLarge));
        assert!(most() > 0);
        assert_eq!(read_stream(&b"all"[..]).unwrap(), b"all");
    }
}
