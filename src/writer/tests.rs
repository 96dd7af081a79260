//! Runs the writer's rounds one by one, without the writer's thread, and checks the state that registering threads find
//! after each round.

use std::sync::atomic::{AtomicBool as Flag, Ordering::SeqCst};
use std::time::Duration;

use super::Writer;
use crate::api::code::{Bytes, Code};
use crate::api::error::{Error, Result};
use crate::api::options::{Config, Options, Sinks};
use crate::queue::chunk::FIRST_SIZE;
use crate::queue::quiesce::{Found, Rest};
use crate::queue::shared::{Message, Shared};
use crate::session::process::Process;
use crate::session::register::Local;
use crate::writer::merge::READ_MOST;

struct World {
    process: &'static Process,
    shared: &'static Shared,
    writer: Box<Writer>,
}

/// Makes a process that writes no file. The process has at most `max_memory` bytes for records. A thread of the process waits
/// at most `max_wait` for memory.
fn world(max_memory: usize, max_wait: Duration) -> World {
    let options = Options { sinks: Some(Sinks::NONE), no_spool: true, max_wait: Some(max_wait), ..Options::default() };
    let config = Config { spool: false, max_memory, ..Config::new(&options).unwrap() };
    let process: &'static Process = Box::leak(Process::new(0, None).unwrap());
    let shared: &'static Shared = Box::leak(Box::new(Shared::new(&config, &process.host.last_error).unwrap()));
    shared.configure(&config);
    assert_eq!(shared.pool.open(None), None);
    shared.status.set_sinks(Sinks::GROUPS.with(Sinks::BYTES), Sinks::NONE);
    let mut writer = Box::new(Writer::new(&process.host, shared, process.regions.clone()));
    writer.begin();
    World { process, shared, writer }
}

impl World {
    /// Makes the data that the library keeps for a thread that registers code.
    fn thread(&self) -> Local {
        Local::new(self.process, self.shared).unwrap()
    }

    fn registered(&self) -> u64 {
        self.shared.status.counters.registered.get()
    }
}

fn register(local: &mut Local, size: usize) -> Result<()> {
    let bytes = vec![0; size];
    let code = Code { bytes: Bytes::Here(&bytes), ..Code::new(0x1000, size as u64, "code") };
    local.register(&code, 0).map(drop)
}

/// If many threads begin at the same time, each thread gets a chunk, as long as there is memory. No thread waits for the
/// writer.
#[test]
fn a_thousand_threads_have_a_chunk_each() {
    let mut world = world(64 << 20, Duration::ZERO);
    let mut threads: Vec<Local> = (0..1000).map(|_| world.thread()).collect();
    for (at, thread) in threads.iter_mut().enumerate() {
        assert_eq!(register(thread, 64), Ok(()), "thread {at}");
    }
    drop(threads);
    world.writer.round(false);
    assert_eq!((world.registered(), world.shared.pool.bytes_used()), (1000, 0));
}

/// Each idle thread that has registered code holds a chunk. The next thread still gets a chunk, however many threads are idle.
#[test]
fn chunks_come_back_when_there_are_few() {
    for (max_memory, count, at_once) in [(1 << 20, 100, 1), (64 << 20, 1500, 50)] {
        let mut world = world(max_memory, Duration::ZERO);
        let mut threads: Vec<Local> = (0..count).map(|_| world.thread()).collect();
        for (at, thread) in threads.iter_mut().enumerate() {
            assert_eq!(register(thread, 64), Ok(()), "thread {at} of {count}");
            if at % at_once == 0 {
                world.writer.round(false);
            }
        }
        drop(threads);
        world.writer.round(false);
        assert_eq!((world.registered(), world.shared.pool.bytes_used()), (count, 0));
    }
}

/// There is room for a large record although idle threads hold chunks.
#[test]
fn chunks_come_back_for_a_large_record() {
    let mut world = world(8 << 20, Duration::ZERO);
    let mut threads: Vec<Local> = (0..20).map(|_| world.thread()).collect();
    threads.iter_mut().for_each(|thread| register(thread, 64).unwrap());
    world.writer.round(false);
    let mut large = world.thread();
    assert_eq!(register(&mut large, 3 << 20), Err(Error::Dropped));
    world.writer.round(false);
    assert_eq!(register(&mut large, 3 << 20), Ok(()));
    drop((threads, large));
    world.writer.round(false);
}

/// A thread that waits for memory wakes the writer repeatedly, because another thread may take the freed memory first.
#[test]
fn who_waits_for_memory_keeps_the_writer_awake() {
    let world = world(1 << 20, Duration::from_secs(20));
    let (shared, is_free, has_ended) = (world.shared, Flag::new(false), Flag::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let taken = shared.wait_for(|| is_free.load(SeqCst).then(|| shared.pool.take(FIRST_SIZE))?);
            has_ended.store(true, SeqCst);
            shared.parker.unpark();
            assert!(taken.is_some());
        });
        for _ in 0..10 {
            shared.parker.park(None);
            assert!(!has_ended.load(SeqCst), "nobody has woken the writer");
            shared.clear_hurry();
        }
        is_free.store(true, SeqCst);
    });
}

/// A thread that ends leaves its chunk and its slot to the writer, even if the channel has no room for a message.
#[test]
fn threads_end_while_messages_have_no_room() {
    let mut world = world(1 << 20, Duration::ZERO);
    let (mut thread, other) = (world.thread(), world.shared.attach().unwrap());
    register(&mut thread, 64).unwrap();
    while world.shared.send_now(Message::Attach(other.clone())) {}
    drop(thread);
    world.writer.round(false);
    other.detach();
    world.writer.round(false);
    assert_eq!((world.registered(), world.shared.pool.bytes_used(), world.writer.sources.len()), (1, 0, 0));
}

/// Forks a process whose writer has `count` records to read. `serve` acts as the writer, once the fork waits for the writer.
/// Returns the state that the fork has found, and how many records the writer had read by then. `None` if this machine was too
/// slow, because the wait has a time limit.
fn fork_with(count: u64, is_own: bool, serve: fn(&mut Writer)) -> Option<(Rest, u64)> {
    let mut world = world(64 << 20, Duration::ZERO);
    world.writer.announce();
    let mut thread = world.thread();
    (0..count).for_each(|_| register(&mut thread, 64).unwrap());
    let own = is_own.then(|| thread.unread_until());
    let (shared, quiesce) = (world.shared, &world.shared.status.quiesce);
    let found = std::thread::scope(|scope| {
        let fork = scope.spawn(|| {
            let found: Found = shared.quiesce(own, Duration::from_secs(30));
            let registered = shared.status.counters.registered.get();
            let is_in_time = found.rest_in_child(world.process.host.page.shared) == found.rest;
            quiesce.over();
            is_in_time.then_some((found.rest, registered))
        });
        while !quiesce.is_asked() {
            std::thread::yield_now();
        }
        serve(&mut world.writer);
        fork.join().unwrap()
    });
    world.writer.round(false);
    assert_eq!(world.registered(), count);
    found
}

/// If there are few records, or if the last record is the forking thread's own, a fork waits until all records are applied.
/// Otherwise the fork does not wait for the start or the end of a round.
#[test]
fn a_fork_waits_for_few_records_and_its_own() {
    let in_time = |count, is_own, serve| (0..100).find_map(|_| fork_with(count, is_own, serve)).expect("never in time");
    assert_eq!(in_time(100, false, Writer::be_quiescent), (Rest::Whole, 100));
    let many = 2 * READ_MOST;
    assert_eq!(in_time(many, true, Writer::be_quiescent), (Rest::Whole, many));
    assert_eq!(in_time(many, false, Writer::be_quiescent), (Rest::Partial, 0));
    let (rest, read) = in_time(many, false, |writer| _ = writer.round(false));
    assert!(rest == Rest::Partial && (1..many / 2).contains(&read), "{rest:?}, {read}");
}
