//! Tests sessions with the sink `sink::counting`: what the applier reports to the sink, how a sink starts late, and how
//! sessions open, close, and continue in a forked child.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{last_error, process, Session};
use crate::api::code::{Bytes, Code, MoveTarget};
use crate::api::error::{Error, Result};
use crate::api::options::{Options, Sinks};
use crate::api::Id;
use crate::queue::record::{Event, EventKind};
use crate::queue::thread_queue::{Fill, ThreadQueue};
use crate::sink::counting::{self, seen, Seen};
use crate::sink::{self, Close};

const LONG: Duration = Duration::from_secs(60);
const COUNTING: Sinks = counting::KIND.bit;

/// All sessions of a process share its sinks, so only one of these tests runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(options: Options) -> Session {
    Session::open(&Options { no_spool: true, ..options }).unwrap()
}

fn register(session: &Session, addr: u64, name: &str) -> Id {
    session.register(&Code { bytes: Bytes::Here(&[0xc3; 16]), ..Code::new(addr, 16, name) }).unwrap()
}

/// The names of live code, in the order of addresses.
fn names(seen: &Seen) -> Vec<(u64, &str)> {
    let mut names: Vec<_> = seen.live.values().map(|(addr, name)| (*addr, name.as_str())).collect();
    names.sort_unstable();
    names
}

/// A record that unregisters all code in 4096 bytes of memory. The first field is the start of the memory, and the second field
/// is added to the record's time stamp.
struct EndAhead(u64, u64);

impl Fill for EndAhead {
    const REFERS: bool = true;

    fn fill(&self, _: &mut [u8], timestamp: u64) -> Result<Option<Event>> {
        let (timestamp, kind) = (timestamp + self.1, EventKind::UnregisterRange);
        Ok(Some(Event { timestamp, addr: self.0, size: 0x1000, tid: 1, kind, ..Event::default() }))
    }
}

/// After a flush, the sinks have all earlier registrations, even if the thread's clock is ahead of the writer's clock.
#[test]
fn a_flush_finds_what_is_stamped_ahead() {
    let _alone = alone();
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    register(&session, 0x7000, "ended ahead");
    session.flush(LONG).unwrap();
    assert_eq!(names(&seen()), [(0x7000, "ended ahead")]);
    let shared = process::current_shared().unwrap();
    let mut queue = ThreadQueue::new(shared).unwrap();
    const AHEAD: u64 = 8_000_000;
    queue.append(&EndAhead(0x7000, AHEAD)).unwrap();
    // The request gets a time in the future, as if its thread's clock were ahead of the writer's clock.
    shared.requests().asked_at = shared.clock.now() + AHEAD;
    session.flush(LONG).unwrap();
    assert_eq!(names(&seen()), []);
    queue.finish();
    session.close().unwrap();
}

/// Tests a plain registration, a registration whose name has to be changed and whose bytes cannot be read, and a registration
/// without a file.
#[test]
fn a_name_ends_with_file_and_line() {
    let _alone = alone();
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    let code = Code { bytes: Bytes::Here(&[0xc3; 16]), file: b"/src/a.c", line: 70, ..Code::new(0x5000, 16, "plain") };
    session.register(&code).unwrap();
    session.register(&Code { addr: 0x5100, name: b"two\nlines", bytes: Bytes::AtAddress, line: 0, ..code }).unwrap();
    session.register(&Code { addr: 0x5200, file: b"", ..code }).unwrap();
    session.flush(LONG).unwrap();
    let expected = [(0x5000, "plain /src/a.c:70"), (0x5100, "two_lines /src/a.c"), (0x5200, "plain")];
    assert_eq!(names(&seen()), expected);
    session.close().unwrap();
}

#[test]
fn a_sink_is_told_of_what_lives() {
    let _alone = alone();
    let before = seen();
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    let first = register(&session, 0x1000, "first");
    let moved = register(&session, 0x2000, "moved");
    register(&session, 0x3000, "overwritten");
    session
        .move_code(moved, &MoveTarget { addr: 0x4000, bytes: Bytes::Here(&[0xc3; 16]), stable: false, gap: false })
        .unwrap();
    session.unregister(first).unwrap();
    register(&session, 0x3008, "last");
    session.flush(LONG).unwrap();
    let after = seen();
    assert_eq!(names(&after), [(0x3008, "last"), (0x4000, "moved")]);
    assert_eq!((after.opened - before.opened, after.loads - before.loads, after.ended - before.ended), (1, 5, 2));
    assert!(after.turns > before.turns);
    assert_eq!(session.stats().unwrap().sinks_running, COUNTING);
    session.close().unwrap();
    assert_eq!(seen().closed[before.closed.len()..], [Close::Stay]);
    // The next session starts without the code of earlier sessions.
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    session.flush(LONG).unwrap();
    assert_eq!((names(&seen()), seen().opened - before.opened), (vec![], 2));
    session.close().unwrap();
}

#[test]
fn a_late_sink_is_told_of_what_is_remembered() {
    let _alone = alone();
    let session = open(Options { sinks: Some(Sinks::NONE), remember: true, ..Options::default() });
    register(&session, 0x1000, "first");
    let gone = register(&session, 0x2000, "gone");
    register(&session, 0x3000, "last");
    session.unregister(gone).unwrap();
    let before = seen();
    session.enable(Some(COUNTING)).unwrap();
    let after = seen();
    assert_eq!(names(&after), [(0x1000, "first"), (0x3000, "last")]);
    assert_eq!((after.opened - before.opened, after.loads - before.loads), (1, 2));
    session.disable(Some(COUNTING)).unwrap();
    assert_eq!(seen().closed[before.closed.len()..], [Close::Stay, Close::Leave]);
    register(&session, 0x4000, "unseen");
    session.flush(LONG).unwrap();
    assert_eq!(seen().loads, after.loads);
    session.close().unwrap();
}

#[test]
fn sessions_share_sinks_until_the_last_one_closes() {
    let _alone = alone();
    let before = seen();
    let first = open(Options { sinks: Some(COUNTING), ..Options::default() });
    let second = open(Options { sinks: Some(COUNTING), ..Options::default() });
    first.close().unwrap();
    register(&second, 0x1000, "of the second");
    second.flush(LONG).unwrap();
    assert_eq!((seen().opened - before.opened, seen().closed.len()), (1, before.closed.len()));
    second.close().unwrap();
    assert_eq!(seen().closed.len(), before.closed.len() + 1);
}

#[test]
fn a_forked_child_is_told_of_what_its_parent_had() {
    let _alone = alone();
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    register(&session, 0x1000, "of the parent");
    session.flush(LONG).unwrap();
    let before = seen();
    // SAFETY: the child uses this library and its own memory, and ends without running anything else.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        register(&session, 0x2000, "of the child");
        let flushed = session.flush(LONG);
        let after = seen();
        let well = flushed.is_ok()
            && names(&after) == [(0x1000, "of the parent"), (0x2000, "of the child")]
            && after.opened == before.opened + 1;
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!well)) };
    }
    let mut status = 0;
    // SAFETY: the pointer is valid.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(names(&seen()), [(0x1000, "of the parent")]);
    session.close().unwrap();
}

#[test]
fn a_map_says_what_was_registered_while_it_did_not_run() {
    let _alone = alone();
    let dir = std::env::temp_dir().join(format!("jitsym-sessions-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let session = |sinks| {
        let dir = Some(dir.clone());
        open(Options { sinks: Some(sinks), map_dir: dir.clone(), jitdump_dir: dir, ..Options::default() })
    };
    for (sinks, name) in [(Sinks::MAP, "first"), (Sinks::JITDUMP, "later"), (Sinks::MAP, "later")] {
        let session = session(sinks);
        register(&session, 0x5000, name);
        session.flush(LONG).unwrap();
        session.close().unwrap();
    }
    let map = std::fs::read_to_string(dir.join(format!("perf-{}.map", std::process::id()))).unwrap();
    let lines: Vec<&str> = map.lines().filter(|line| line.starts_with("5000 ")).collect();
    assert_eq!(lines, ["5000 10 later"]);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn all_sinks_are_those_that_there_are() {
    assert_eq!(sink::every(), Sinks::ALL.with(COUNTING));
}

/// Refusals of the Rust interface are counted and explained like those of the C interface. If a call records a reason for a
/// refusal and then succeeds, no later call reports this reason.
#[test]
fn refusals() {
    let _alone = alone();
    let session = open(Options { sinks: Some(COUNTING), ..Options::default() });
    let refused = || session.stats().unwrap().calls_refused;
    let before = refused();
    assert_eq!(session.register(&Code::new(0, 16, "nowhere")), Err(Error::AddressRange));
    assert!(last_error().contains("addr is 0x0, size 16"), "{}", last_error());
    let wrong = Code { bytes: Bytes::Here(&[0xc3; 16]), ..Code::new(0x1000, 17, "longer") };
    assert_eq!(session.register(&wrong), Err(Error::Buffer));
    assert!(last_error().contains("code.bytes has 16 bytes, code.size is 17"), "{}", last_error());
    assert_eq!(session.unregister(Id(77)), Err(Error::UnknownId));
    assert!(last_error().contains("the id 0x4d"), "{}", last_error());
    assert_eq!(refused(), before + 3);
    register(&session, 0x1000, "right");
    assert_eq!(refused(), before + 3);
    session.close().unwrap();
    assert_eq!(Session::open(&Options { map_dir: Some("tmp".into()), ..Options::default() }).err(), Some(Error::Path));
    assert!(last_error().contains("a directory is no absolute path"), "{}", last_error());
}
