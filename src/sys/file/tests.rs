use std::ffi::OsStr;
use std::fs;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::claim::create_with;
use super::*;
use crate::sys::descriptor_table;

fn dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("jitsym-file-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    dir
}

fn claim(path: &Path, mode: u32) -> io::Result<File> {
    super::claim(&Dir::of(path)?, path.file_name().unwrap_or_default(), mode, APPEND)
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    create_with(&Dir::of(path)?, path.file_name().unwrap_or_default(), mode, APPEND)
}

/// A lock for tests that change the state of the whole process. Tests that depend on this state also take the lock. A test that
/// starts a child also takes this lock. Until the child executes its program, the child has copies of all descriptors, so a
/// file that the parent closes stays locked.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_stale_file_is_replaced_and_a_file_in_use_is_not() {
    let _alone = alone();
    let dir = dir("stale");
    let path = dir.join("jit-1.dump");
    fs::write(&path, "of somebody in this process").unwrap();
    assert!(claim(&path, 0o600).unwrap_err().to_string().contains("another library"));
    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let file = claim(&path, 0o600).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 0);
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(claim(&path, 0o600).unwrap_err().to_string().contains("another library"));
    drop(file);
    assert!(claim(&path, 0o600).is_ok());
    fs::remove_dir_all(&dir).unwrap();
}

/// `claim` refuses a file that is locked for writing. Only a process that may write to the file can lock it for writing.
/// `claim` ignores a lock of flock(2), because a process that may only read the file can also take a lock of flock(2).
#[test]
fn a_file_of_a_living_process_is_refused() {
    let _alone = alone();
    let dir = dir("living");
    let path = dir.join("jit-1.dump");
    // `claim` refuses every file that is open in the host's descriptor table, even if the file is not locked. So this test
    // opens the file in other descriptor tables.
    let is_alive = || is_locked(&Dir::of(&path).unwrap(), path.file_name().unwrap());
    fs::write(&path, "alive").unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let apart = |body: &(dyn Fn() + Sync)| {
        std::thread::scope(|scope| {
            let run = || {
                assert!(descriptor_table::separate());
                body();
            };
            scope.spawn(run).join().unwrap();
        });
    };
    apart(&|| {
        let holder = File::options().write(true).open(&path).unwrap();
        assert!(lock(&holder) && is_alive());
        apart(&|| assert!(claim(&path, 0o600).unwrap_err().to_string().contains("living process")));
        assert_eq!(fs::read(&path).unwrap(), b"alive");
    });
    apart(&|| {
        let reader = File::open(&path).unwrap();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::flock(reader.as_raw_fd(), libc::LOCK_EX) }, 0);
        assert!(!is_alive());
        apart(&|| assert_eq!(claim(&path, 0o600).unwrap().metadata().unwrap().len(), 0));
    });
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn links_and_strange_files_are_refused() {
    let dir = dir("links");
    let (target, path) = (dir.join("target"), dir.join("perf-1.map"));
    fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    let error = claim(&path, 0o600).unwrap_err();
    assert!(error.to_string().contains("regular") && is_anothers(&error));
    fs::remove_file(&path).unwrap();
    fs::hard_link(&target, &path).unwrap();
    assert!(claim(&path, 0o600).unwrap_err().to_string().contains("hard link"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(claim(&path, 0o600).is_err());
    // None of these errors means that another file has the name.
    let full = dir.join("x".repeat(256));
    assert!(!is_anothers(&claim(&full, 0o600).unwrap_err()));
    assert!([libc::EACCES, libc::ENOSPC, libc::EMFILE]
        .iter()
        .all(|&it| !is_anothers(&io::Error::from_raw_os_error(it))));
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn reopening_notices_another_file() {
    let dir = dir("reopen");
    let path = dir.join("a");
    let file = create_new(&path, 0o600).unwrap();
    let id = look_at(&file).unwrap();
    let reopen = |id| reopen(&Dir::open(&dir).unwrap(), OsStr::new("a"), id, APPEND);
    assert!(reopen(id).is_ok());
    let other = dir.join("b");
    fs::write(&other, "x").unwrap();
    fs::rename(&other, &path).unwrap();
    assert!(reopen(id).is_err());
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn vectored_writes_are_complete() {
    let _alone = alone();
    let dir = dir("writev");
    let path = dir.join("a");
    let file = create_new(&path, 0o600).unwrap();
    let parts: Vec<Vec<u8>> = (0..3000u32).map(|n| n.to_le_bytes().to_vec()).collect();
    let mut slices: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
    assert_eq!(append_whole(&file, &mut slices).unwrap(), 12_000);
    assert_eq!(fs::read(&path).unwrap(), parts.concat());
    fs::remove_dir_all(&dir).unwrap();
}

/// This test runs in a separate process, because the limit applies to the whole process, and other tests write files.
#[test]
fn a_write_that_fails_half_way_leaves_nothing() {
    const LIMITED: &str = "JITSYM_TEST_LIMITED";
    let _alone = alone();
    if std::env::var_os(LIMITED).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "sys::file::tests::a_write_that_fails_half_way_leaves_nothing"]).env(LIMITED, "1");
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let dir = dir("half");
    let path = dir.join("a");
    let file = create_new(&path, 0o600).unwrap();
    append_whole(&file, &mut [IoSlice::new(b"whole")]).unwrap();
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: these are plain system calls with valid pointers. SIGXFSZ is ignored, because it would end the process.
    let error = unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut before);
        libc::setrlimit(libc::RLIMIT_FSIZE, &libc::rlimit { rlim_cur: 4096, ..before });
        append_whole(&file, &mut [IoSlice::new(&[b'x'; 3000]), IoSlice::new(&[b'y'; 3000])]).unwrap_err()
    };
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    fs::remove_dir_all(&dir).unwrap();
}
