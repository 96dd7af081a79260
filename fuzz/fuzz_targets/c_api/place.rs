//! Where a fuzzing process has its files, and what is checked of them.

use std::ffi::c_int;
use std::fs;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ::jitsym::{Options, Session};
use jitsym_tool::check::{check, Facts, Finding, Severity};

/// MOVE records and Android's dialect are asked for at times, and descriptions are not those of the code.
const ALLOWED: [&str; 5] = ["code-move", "map-0x", "unwind-frame-pointer", "unwind-cfa-wrong", "unwind-return-address"];
/// What records may take until they are written.
const MEMORY_MAX: usize = 8 << 20;
const ROOTS: &str = "/dev/shm/jitsym-fuzz-";

/// See the module's description.
pub struct Place {
    root: PathBuf,
    /// Memory that is there: code that lies in it can be read.
    pub memory: Box<[u8]>,
    /// As many as code can have here.
    pub many_bytes: Box<[u8]>,
    /// What the process has printed to its standard output.
    printed: RawFd,
    runs: AtomicU32,
}

impl Place {
    /// Makes the directories, opens a first session, whose bound of memory counts for all, and sees to it that nothing stays.
    pub fn new() -> Place {
        for entry in fs::read_dir("/dev/shm").expect("/dev/shm").flatten() {
            let path = entry.path().display().to_string();
            let pid = path.strip_prefix(ROOTS).filter(|pid| !Path::new("/proc").join(pid).exists());
            pid.map(|_| fs::remove_dir_all(&path));
        }
        let root = PathBuf::from(format!("{ROOTS}{}", std::process::id()));
        for dir in ["a", "b", "spools"] {
            fs::create_dir_all(root.join(dir)).expect("a directory");
        }
        // SAFETY: no other thread runs yet.
        unsafe {
            for name in ["JITSYM", "JITSYM_SPOOL", "JITSYM_RECOVER", "JITSYM_FORK", "JITSYM_UNWIND", "JITDUMPDIR"] {
                std::env::remove_var(name);
            }
            std::env::set_var("JITSYM_DIR", root.join("a"));
            std::env::set_var("JITSYM_SPOOL_DIR", root.join("spools"));
            libc::atexit(remove_root);
        }
        // SAFETY: the name ends with a NUL.
        let printed = unsafe { libc::memfd_create(c"printed".as_ptr(), 0) };
        // SAFETY: descriptors only.
        assert!(printed >= 0 && unsafe { libc::dup2(printed, 1) } == 1);
        let options = Options { max_memory: Some(MEMORY_MAX as u64), ..Options::default() };
        Session::open(&options).and_then(|session| session.close()).expect("a session");
        Place {
            root,
            memory: vec![0x90; 1 << 16].into(),
            many_bytes: vec![0xcc; MEMORY_MAX].into(),
            printed,
            runs: AtomicU32::new(0),
        }
    }

    /// A directory, by number: good ones and bad ones. None stands for NULL.
    pub fn dir(&self, number: u8) -> Option<PathBuf> {
        Some(match number % 16 {
            0..=6 => self.root.join("a"),
            7..=8 => self.root.join("b"),
            9 => self.root.join("missing"),
            10 => "".into(),
            11 => "relative/path".into(),
            12 => format!("/{}", "x".repeat(2000)).into(),
            13 => self.root.join("a/../a/"),
            14 => "/dev/null".into(),
            _ => return None,
        })
    }

    /// In one run of 64 standard error goes to where the output does: then it is seen if the library prints something, and a
    /// finding of a sanitizer, which would not be seen, comes again with another run.
    pub fn begin_run(&self) -> Option<RawFd> {
        let is_due = self.runs.fetch_add(1, Ordering::Relaxed) % 64 == 63;
        // SAFETY: descriptors only.
        is_due.then(|| unsafe {
            let errors = libc::dup(2);
            assert!(errors >= 0 && libc::dup2(self.printed, 2) == 2);
            errors
        })
    }

    /// All sessions are closed: the files must be right. They begin anew with the next run.
    pub fn end_run(&self, errors: Option<RawFd>) {
        if let Some(errors) = errors {
            // SAFETY: descriptors only.
            let _: c_int = unsafe { libc::dup2(errors, 2) + libc::close(errors) };
        }
        // SAFETY: a descriptor only.
        let printed = unsafe { libc::lseek(self.printed, 0, libc::SEEK_END) };
        assert_eq!(printed, 0, "something was printed");
        for dir in ["a", "b"] {
            for entry in fs::read_dir(self.root.join(dir)).expect("a directory").flatten() {
                check_file(&entry.path());
            }
        }
    }
}

fn check_file(path: &Path) {
    let bytes = fs::read(path).expect("a file of our own");
    let facts = Facts { path: Some(path.into()), ..Facts::default() };
    let mut findings: Vec<Finding> = Vec::new();
    check(&bytes, &facts, &mut findings);
    let is_error = |finding: &&Finding| finding.rule.severity == Severity::Error && !ALLOWED.contains(&finding.rule.id);
    let error = findings.iter().find(is_error);
    assert!(error.is_none(), "{}: {error:?}", path.display());
    // The map stays as it is, because it would only be written again; a dump grows.
    if path.extension().is_some_and(|extension| extension == "dump") {
        fs::remove_file(path).expect("a file of our own");
    }
}

extern "C" fn remove_root() {
    let _ = fs::remove_dir_all(format!("{ROOTS}{}", std::process::id()));
}
