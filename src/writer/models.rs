//! Checks the interactions between threads by loom models, which run the library's own code. loom runs the code in every
//! possible order of events. The only limit is the number of times that loom interrupts a thread which could continue. For each
//! order, loom tries every value that a load may return.
//!
//! Each model names the source lines on whose memory order it depends. If the memory order in one of these lines is weakened,
//! the model has to fail. loom then finds a race, a lost record, or a thread that waits for ever.

#![allow(clippy::expect_used, clippy::panic, reason = "a model fails by a panic")]

use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool as Flag, Ordering::SeqCst};
use std::sync::OnceLock;
use std::time::Duration;

use loom::thread;

use crate::api::code::{Bytes, Code};
use crate::api::options::{Config, Options, Sinks};
use crate::queue::chunk::CHUNK_SIZE;
use crate::queue::oneshot::oneshot;
use crate::queue::quiesce::Rest;
use crate::queue::requests::Stop;
use crate::queue::shared::Shared;
use crate::session::process::Process;
use crate::session::register::Local;
use crate::sys::sync::atomic::{self, AtomicU64, Ordering};
use crate::writer::Writer;

struct Model {
    name: &'static str,
    /// The maximum number of times that loom interrupts a thread which could continue.
    switches: usize,
    body: fn(&World),
    /// Source lines with a memory order. Each entry has the file and the text of a line. The model runs once for each entry,
    /// with a weaker memory order in the entry's line.
    weak: &'static [(&'static str, &'static str)],
}

const FENCE: &str = "            fence(Ordering::SeqCst);";

/// The source line in which a thread marks the end of a record, and the source line in which the writer reads this mark.
const END: (&str, &str) = ("src/queue/thread_slot.rs", "self.busy.store(false, Ordering::Release)");
const IS_BUSY: (&str, &str) = ("src/queue/thread_slot.rs", "self.busy.load(Ordering::Acquire)");

const MODELS: &[Model] = &[
    Model {
        name: "publish",
        switches: 2,
        body: publish,
        weak: &[("src/queue/chunk.rs", "committed.store(self.events, Ordering::Release)")],
    },
    Model {
        name: "take_back",
        switches: 3,
        body: take_back,
        weak: &[("src/queue/shared/wake.rs", FENCE), END, IS_BUSY],
    },
    Model { name: "pool", switches: 2, body: pool, weak: &[("src/queue/pool.rs", "self.top.fetch_update(")] },
    Model { name: "sleep", switches: 2, body: sleep, weak: &[("src/queue/shared/wake.rs", FENCE)] },
    Model {
        name: "flush",
        switches: 1,
        body: flush,
        weak: &[("src/queue/chunk.rs", "self.head().committed.load(Ordering::Acquire)")],
    },
    Model { name: "close", switches: 1, body: close, weak: &[("src/queue/shared/wake.rs", FENCE)] },
    Model { name: "fork", switches: 1, body: fork, weak: &[("src/queue/quiesce/mod.rs", "fence(Ordering::SeqCst)")] },
    Model { name: "halt", switches: 3, body: halt, weak: &[END, IS_BUSY] },
];

/// The state of a process. Each run makes a new `shared`, and all runs use the same `process`.
#[derive(Clone, Copy)]
struct World {
    shared: &'static Shared,
    process: &'static Process,
}

impl World {
    fn new(units: usize) -> World {
        static PROCESS: OnceLock<(&'static Process, Config)> = OnceLock::new();
        let (process, config) = PROCESS.get_or_init(|| {
            let options = Options { sinks: Some(Sinks::NONE), no_spool: true, ..Options::default() };
            let config = Config { spool: false, ..Config::new(&options).expect("configuration") };
            (Box::leak(Process::new(0, None).expect("process")), config)
        });
        let config = Config { max_memory: units * CHUNK_SIZE, ..config.clone() };
        let shared = Shared::new(&config, &process.host.last_error).expect("shared");
        assert_eq!(shared.pool.open(None), None);
        // Chunks are made in advance, as in a busy process, so that threads do not take the lock that is needed to make chunks.
        shared.pool.ask_for(CHUNK_SIZE);
        // These flags make threads write records with bodies. No sink actually runs.
        shared.status.set_sinks(Sinks::GROUPS.with(Sinks::BYTES), Sinks::NONE);
        World { shared: Box::leak(Box::new(shared)), process }
    }

    /// Frees the state of the process, after all threads have ended.
    fn end(self) {
        // SAFETY: all threads that used `shared` have ended.
        let mut shared = unsafe { Box::from_raw(ptr::from_ref(self.shared).cast_mut()) };
        shared.ids.free();
    }

    fn writer(&self) -> Box<Writer> {
        let mut writer = Box::new(Writer::new(&self.process.host, self.shared, self.process.regions.clone()));
        writer.begin();
        writer
    }

    fn thread(&self) -> Local {
        Local::new(self.process, self.shared).expect("a place")
    }

    /// How many pieces of code the writer has read.
    fn registered(&self) -> u64 {
        self.shared.status.counters.registered.get()
    }

    /// Starts a writer. The returned function stops the writer.
    fn start(self) -> impl FnOnce() -> Box<Writer> {
        let mut writer = self.writer();
        writer.announce();
        let (home, come_home) = oneshot();
        let thread = thread::spawn(move || writer.run(home));
        move || {
            let (ack, answer) = oneshot();
            self.shared.requests().stop = Some(Stop { off: false, ack });
            self.shared.wake();
            answer.take(Duration::MAX).expect("an answer").expect("nothing can fail");
            thread.join().expect("the writer");
            come_home.take(Duration::MAX).expect("the writer")
        }
    }
}

fn register(local: &mut Local, size: usize) {
    let bytes = [0; CHUNK_SIZE];
    let code = Code { bytes: Bytes::Here(&bytes[..size]), ..Code::new(0x1000, size as u64, "code") };
    local.register(&code, 0).expect("there is room");
}

/// Code of this size fills half a chunk, so that the records of two such pieces do not fit into one chunk.
const LARGE: usize = CHUNK_SIZE / 2;

/// A thread publishes records, changes its chunk and ends, while the writer reads. Each record is read once and completely.
fn publish(world: &World) {
    let world = *world;
    let mut writer = world.writer();
    let thread = thread::spawn(move || {
        let mut local = world.thread();
        register(&mut local, 16);
        register(&mut local, LARGE);
        register(&mut local, LARGE);
    });
    writer.round(false);
    writer.round(false);
    thread.join().expect("thread");
    writer.round(false);
    assert_eq!(world.registered(), 3);
    assert_eq!(world.shared.pool.bytes_used(), 0, "all chunks have come back");
}

/// The writer takes the chunk back from a thread that begins a record at the same time, and gives the chunk to another thread.
fn take_back(world: &World) {
    let world = *world;
    let mut writer = world.writer();
    let mut local = world.thread();
    register(&mut local, 16);
    writer.round(false);
    let thread = thread::spawn(move || {
        register(&mut local, 16);
        local
    });
    writer.take_back();
    let mut other = world.thread();
    register(&mut other, 16);
    let local = thread.join().expect("thread");
    writer.round(false);
    assert_eq!(world.registered(), 3);
    drop((local, other));
}

/// Threads take and recycle chunks. Two threads never have the same chunk.
fn pool(world: &World) {
    let world = *world;
    let use_one = move || {
        for _ in 0..2 {
            if let Some(cursor) = world.shared.pool.take(CHUNK_SIZE) {
                cursor.chunk().touch();
                world.shared.pool.recycle(cursor.chunk());
            }
        }
    };
    world.shared.pool.replenish(1);
    let threads = [thread::spawn(use_one), thread::spawn(use_one)];
    for thread in threads {
        thread.join().expect("thread");
    }
    assert_eq!(world.shared.pool.bytes_used(), 0);
}

/// The writer falls asleep while a thread registers code. The writer finds the record, or is woken.
fn sleep(world: &World) {
    let world = *world;
    let mut writer = world.writer();
    let mut local = world.thread();
    let thread = thread::spawn(move || {
        register(&mut local, 16);
        local
    });
    // The writer may wake up before the thread has registered the code, so the writer sleeps in a loop.
    while world.registered() == 0 {
        writer.sleep();
        writer.round(false);
    }
    drop(thread.join().expect("thread"));
}

/// When a flush is answered, all code that was registered before the flush has been written.
fn flush(world: &World) {
    let world = *world;
    let stop = world.start();
    let thread = thread::spawn(move || {
        let mut local = world.thread();
        register(&mut local, 16);
        world.shared.flush(Duration::MAX).expect("an answer");
        assert_eq!(world.registered(), 1);
        local
    });
    let local = thread.join().expect("thread");
    stop();
    drop(local);
}

/// A session is closed while a thread registers code. Either the record is written, or the call reports that the session is
/// closed.
fn close(world: &World) {
    let world = *world;
    // The word that tells whether the session is open. The model does not use the atomics in `process`, because `process` is
    // made only once, and loom needs new atomics in each run.
    let place = std::sync::Arc::new(AtomicU64::new(1));
    let stop = world.start();
    let mut local = world.thread();
    let its_place = place.clone();
    let thread = thread::spawn(move || {
        register(&mut local, 16);
        // `Ref::still_open` makes the same check.
        world.shared.order();
        (its_place.load(Ordering::Relaxed) == 1, local)
    });
    // This is the step by which `Ref::close` closes the session.
    place.compare_exchange(1, 0, Ordering::SeqCst, Ordering::Relaxed).expect("one closer");
    let writer = stop();
    let written = world.registered();
    let (told, local) = thread.join().expect("thread");
    assert!(!told || written == 1, "a record is lost, and its caller was told that it is not");
    drop((local, writer));
}

/// A process forks while a thread begins to register code. The writer has read the records of calls that returned before the
/// fork, and nothing changes until the fork is over.
fn fork(world: &World) {
    let world = *world;
    let stop = world.start();
    static RETURNED: Flag = Flag::new(false);
    RETURNED.store(false, SeqCst);
    let thread = thread::spawn(move || {
        let mut local = world.thread();
        register(&mut local, 16);
        RETURNED.store(true, SeqCst);
        local
    });
    let before = RETURNED.load(SeqCst);
    let found = world.shared.quiesce(None, Duration::from_millis(75));
    assert_eq!(found.rest, Rest::Whole);
    let in_child = (world.registered(), world.shared.pool.memory().has_unread());
    assert!(!before || in_child.0 == 1);
    thread::yield_now();
    assert_eq!((world.registered(), world.shared.pool.memory().has_unread()), (in_child.0, false));
    world.shared.status.quiesce.over();
    drop(thread.join().expect("thread"));
    stop();
}

/// A process forks while a thread writes a record. Either the writer has read the record before the fork, or the thread
/// publishes the record only after the fork.
fn halt(world: &World) {
    let world = *world;
    let mut writer = world.writer();
    writer.announce();
    let mut local = world.thread();
    let thread = thread::spawn(move || {
        register(&mut local, 16);
        local
    });
    let quiesce = &world.shared.status.quiesce;
    // The writer is woken for this request, and handles it on this thread.
    let found = quiesce.prepare(0, Duration::from_millis(75), None, || writer.be_quiescent());
    assert_eq!(found.rest, Rest::Whole);
    let in_child = world.registered();
    thread::yield_now();
    assert_eq!((world.registered(), world.shared.pool.memory().has_unread()), (in_child, false));
    quiesce.over();
    drop(thread.join().expect("thread"));
}

/// `FILE:LINE` of the only line with this text.
fn place(file: &str, text: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + file;
    let source = std::fs::read_to_string(&path).expect("source");
    let mut lines = source.lines().zip(1..).filter(|(line, _)| line.contains(text));
    let (_, line) = lines.next().unwrap_or_else(|| panic!("{file} has no line with {text}"));
    assert!(lines.next().is_none(), "{file} has several lines with {text}");
    format!("{file}:{line}")
}

/// Runs a model. If `weak` is given, weakens the memory order in the source line `weak`. Panics if the model fails. Returns
/// false if no model has this name.
pub fn run(name: &str, weak: Option<&str>) -> bool {
    let Some(model) = MODELS.iter().find(|model| model.name == name) else { return false };
    atomic::weaken(weak);
    let mut builder = loom::model::Builder::new();
    let switches = std::env::var("JITSYM_SWITCHES").ok().and_then(|number| number.parse().ok());
    builder.preemption_bound = Some(switches.unwrap_or(model.switches));
    builder.max_branches = 20_000;
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let (counted, begin) = (runs.clone(), std::time::Instant::now());
    let body = model.body;
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        let world = World::new(4);
        body(&world);
        world.end();
    });
    println!("{name}: {} orders of events in {:.1?}", runs.load(SeqCst), begin.elapsed());
    true
}

/// Runs a model in a separate process. Returns true if the model holds.
fn holds(name: &str, weak: Option<&str>) -> bool {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let output = command.arg(name).args(weak).output().expect("start it");
    if weak.is_none() {
        print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Runs each model with unchanged memory orders. Then runs the model once for each line in `Model::weak`, with the memory order
/// in this line weakened. Returns true if all runs with unchanged memory orders succeed, and all runs with a weakened line
/// fail.
pub fn run_all() -> bool {
    let mut well = true;
    for model in MODELS {
        if !holds(model.name, None) {
            println!("{}: FAILED", model.name);
            well = false;
        }
        for (file, text) in model.weak {
            let place = place(file, text);
            let noticed = !holds(model.name, Some(&place));
            println!("{}: weakened at {place}: {}", model.name, if noticed { "noticed" } else { "NOT NOTICED" });
            well &= noticed;
        }
    }
    well
}

/// For each source line that names a memory order, runs each model with a weaker order in this line. Prints which models fail.
pub fn sweep() -> bool {
    for model in MODELS {
        for file in [
            "queue/chunk",
            "queue/thread_slot",
            "queue/pool",
            "queue/shared/mod",
            "queue/shared/room",
            "queue/shared/wake",
            "queue/shared/ask",
            "queue/quiesce/mod",
            "sys/park",
            "sys/barrier",
        ] {
            let file = format!("src/{file}.rs");
            let source = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../").to_owned() + &file);
            let source = source.expect("source");
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            let gives_order =
                |line: &str| ["Release", "Acquire", "AcqRel", "SeqCst"].iter().any(|order| line.contains(order));
            for (line, number) in code.lines().zip(1..).filter(|(line, _)| gives_order(line)) {
                if !holds(model.name, Some(&format!("{file}:{number}"))) {
                    println!("{}: notices {file}:{number}: {}", model.name, line.trim());
                }
            }
        }
    }
    true
}
