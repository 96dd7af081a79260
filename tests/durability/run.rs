//! Runs of `c-tests/durability/kill_me.c`, and what they leave behind.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::plan::{slow_disk, Plan, CALLS_MAX};
use super::recover::{recover, Report};
use crate::perf;
use crate::support::{scratch_dir, spaceless, stdout, try_run};

const THREADS_MAX: usize = 32;
const CALLS_AT: usize = 4096;

/// An empty directory for one run's files.
pub fn fresh_dir(name: &str) -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    crate::support::fresh_dir(format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)))
}

/// A directory for spools that nobody else looks into, removed when dropped: in memory, unless there is too little. The
/// notes lie beside it, because writing them to a disk would be a good part of a run's time.
pub struct SpoolDir(pub PathBuf);

impl SpoolDir {
    pub fn new(name: &str) -> SpoolDir {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("jitsym-test-{}-{name}-{number}", std::process::id());
        let df = try_run(Command::new("df").args(["--output=avail", "-B1M", "/dev/shm"]));
        let free = stdout(&df).lines().last().and_then(|megabytes| megabytes.trim().parse().ok()).unwrap_or(0u64);
        let dir = if free >= 512 { Path::new("/dev/shm").join(name) } else { scratch_dir(name) }.join("spools");
        std::fs::create_dir_all(&dir).expect("directory for spools");
        SpoolDir(dir)
    }

    /// Where the notes are.
    pub fn truth(&self) -> PathBuf {
        self.0.with_file_name("truth")
    }

    /// A file that is there once the disk hangs.
    pub fn hangs(&self) -> PathBuf {
        self.0.with_file_name("hangs")
    }

    /// The spools in it.
    pub fn spools(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("directory for spools");
        entries.map(|entry| entry.expect("entry").path()).collect()
    }
}

impl Drop for SpoolDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap_or(&self.0));
    }
}

/// A process that runs `c-tests/durability/kill_me.c`, or has.
pub struct Run {
    pub plan: Plan,
    pub dir: PathBuf,
    pub spool: SpoolDir,
    child: Child,
}

impl Run {
    pub fn start(name: &str, plan: Plan) -> Run {
        Run::start_with(name, plan, &[], &[])
    }

    /// Starts the program by way of another one, for instance perf, and in another environment.
    pub fn start_with(name: &str, plan: Plan, before: &[&str], environment: &[(&str, &str)]) -> Run {
        let dir = fresh_dir(name);
        let spool = SpoolDir::new(name);
        let words: Vec<String> =
            before.iter().map(|&word| word.into()).chain(plan.words(&dir, &spool.truth())).collect();
        let mut command = perf::command(&words[0]);
        command.args(&words[1..]).env("JITSYM_SPOOL_DIR", &spool.0).envs(environment.iter().copied());
        if !plan.slow_disk.is_empty() {
            command.env("LD_PRELOAD", spaceless(slow_disk())).env("SLOW_DISK", &plan.slow_disk);
            command.env("SLOW_DISK_HANGS", spool.hangs());
        }
        let log = std::fs::File::create(dir.join("log")).expect("log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
        let child = command.spawn().expect("start the program");
        Run { plan, dir, spool, child }
    }

    /// The process that registers, which need not be the child.
    pub fn pid(&self) -> u32 {
        self.head().pid as u32
    }

    pub fn dump(&self) -> PathBuf {
        self.dir.join(format!("jit-{}.dump", self.pid()))
    }

    pub fn map(&self) -> PathBuf {
        self.dir.join(format!("perf-{}.map", self.pid()))
    }

    /// What the program has noted so far, but for the calls.
    fn head(&self) -> Truth {
        Truth::read(&self.spool.truth(), false)
    }

    /// What the program has noted so far.
    pub fn truth(&self) -> Truth {
        Truth::read(&self.spool.truth(), true)
    }

    /// Waits until the notes say so.
    pub fn wait_until(&mut self, what: &str, condition: impl Fn(&Truth) -> bool) {
        crate::support::wait_until(&format!("{what} of {self}"), || {
            let ended = self.child.try_wait().expect("wait for the program");
            let is_so = condition(&self.head());
            assert!(is_so || ended.is_none(), "{self}: ended with {ended:?} before {what}: {}", self.log());
            is_so
        });
    }

    /// Waits until the library's thread is in a write that never ends. It has no other file under way then.
    pub fn wait_until_the_disk_hangs(&mut self) {
        let hangs = self.spool.hangs();
        self.wait_until("a disk that hangs", |_| hangs.exists());
    }

    /// Kills the process and waits for its end. It must have lived so long.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill the program");
        let status = self.child.wait().expect("wait for the program");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{self}: {status}: {}", self.log());
    }

    /// Waits for an end of its own accord.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        crate::support::wait_until(&format!("the end of {self}"), || {
            status = self.child.try_wait().expect("wait for the program");
            status.is_some()
        });
        status.expect("its status")
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A number that it printed at its end.
    pub fn said(&self, name: &str) -> u64 {
        said(&self.log(), name).parse().expect("number")
    }

    /// Waits for a good end.
    pub fn wait_ok(&mut self) {
        let status = self.wait();
        assert!(status.success(), "{self}: {status}: {}", self.log());
    }

    /// Both files as they are; those that there are.
    pub fn files(&self) -> Vec<Option<Vec<u8>>> {
        [self.dump(), self.map()].iter().map(|path| std::fs::read(path).ok()).collect()
    }

    /// Recovers what the process left, and checks that all went well. The number of records, if there was a spool.
    pub fn recover(&self) -> Option<u64> {
        let output = recover(&self.spool.0, &[]);
        let report = Report::parse(&output);
        assert!(output.status.success(), "{self}: {output:?}");
        // A child that has gone on with the session has one of its own.
        let of_child = format!("jitsym-{}-", self.head().child);
        let left: Vec<_> = self.spool.spools();
        assert!(left.iter().all(|spool| format!("{spool:?}").contains(&of_child)), "{self}: left behind: {left:?}");
        match report.as_slice() {
            [] => None,
            [one] if one.pid == self.pid() && one.complaints.is_empty() => Some(one.records),
            other => panic!("{self}: {other:?}"),
        }
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in {}", self.plan, self.dir.display())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let child = self.head().child;
        if child != 0 {
            kill(child as u32);
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// The value of a line `name=value`.
pub fn said(log: &str, name: &str) -> String {
    let value = log.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {log:?}")).into()
}

/// Ends a process that a test has started.
pub fn kill(pid: u32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
}

/// The notes of the program: what the library had accepted when the process ended.
#[derive(Default)]
pub struct Truth {
    pub pid: u64,
    /// `jitsym_init` had returned.
    pub opened: bool,
    /// `jitsym_stats.spool` then.
    pub spool: u64,
    /// The forked child, 0 for none.
    pub child: u64,
    /// All calls were made.
    pub done: bool,
    pub tids: Vec<u64>,
    /// By thread, how each call that returned ended.
    calls: Vec<Vec<u8>>,
}

impl Truth {
    /// No file, or an empty one: the program has not got that far.
    pub fn read(path: &Path, with_calls: bool) -> Truth {
        use std::os::unix::fs::FileExt;
        let Ok(file) = std::fs::File::open(path) else { return Truth::default() };
        let mut head = [0; CALLS_AT];
        if file.read_exact_at(&mut head, 0).is_err() {
            return Truth::default();
        }
        let word = |index: usize| u64::from_ne_bytes(head[8 * index..][..8].try_into().expect("eight bytes"));
        let tids: Vec<u64> = (0..THREADS_MAX).map(|thread| word(8 + thread)).collect();
        let calls_of = |thread: usize| {
            let mut calls = vec![0; CALLS_MAX];
            file.read_exact_at(&mut calls, (CALLS_AT + thread * CALLS_MAX) as u64).expect("notes");
            calls.truncate(calls.iter().position(|&call| call == 0).unwrap_or(CALLS_MAX));
            calls
        };
        // A thread that has not started yet has made no call.
        let threads = tids.iter().rposition(|&tid| tid != 0).filter(|_| with_calls).map_or(0, |last| last + 1);
        let calls = (0..threads).map(calls_of).collect();
        Truth { pid: word(0), opened: word(1) != 0, spool: word(2), child: word(3), done: word(4) != 0, tids, calls }
    }

    /// How many calls of a thread have returned.
    pub fn returned(&self, thread: u64) -> u64 {
        self.calls.get(thread as usize).map_or(0, |calls| calls.len() as u64)
    }

    /// Of a call that has returned, whether the library took the record.
    pub fn accepted(&self, thread: u64, call: u64) -> Option<bool> {
        self.calls.get(thread as usize)?.get(call as usize).map(|&noted| noted == 1)
    }

    /// How many calls were accepted, and how many refused.
    pub fn totals(&self) -> (u64, u64) {
        let accepted = self.calls.iter().flatten().filter(|&&noted| noted == 1).count() as u64;
        (accepted, self.calls.iter().map(|calls| calls.len() as u64).sum::<u64>() - accepted)
    }
}
