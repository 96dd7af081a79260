//! The Rust interface over a fork: a session is the same in the child, and what it refers to is the child's own.

use jitsym::{Bytes, Code, Fork, Options, Session, Sinks};
use std::time::Duration;

/// Runs `child` in a forked child, and fails if it panics.
fn in_child(child: impl FnOnce()) {
    // SAFETY: the child does what is allowed where glibc puts its allocator in order after a fork, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the child is ours, and the pointer valid.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child has failed");
}

fn code(addr: u64, name: &str) -> Code<'_> {
    Code { bytes: Bytes::Here(&[0xc3; 16]), ..Code::new(addr, 16, name) }
}

#[test]
fn a_session_goes_on_in_a_child() {
    let dir = crate::support::scratch_dir("files");
    let open = |fork| {
        let (map_dir, jitdump_dir) = (Some(dir.clone()), Some(dir.clone()));
        Session::open(&Options { map_dir, jitdump_dir, fork: Some(fork), ..Options::default() }).expect("session")
    };
    let session = open(Fork::FirstCall);
    let id = session.register(&code(0x1000, "of the parent")).expect("registered");
    let parents = session.path(Sinks::MAP).expect("path");
    // A fork waits a while for the background thread, and not for ever.
    session.flush(Duration::from_secs(60)).expect("flushed");
    in_child(|| {
        session.register(&code(0x2000, "of the child")).expect("registered in the child");
        session.unregister(id).expect("the id is valid");
        session.flush(Duration::from_secs(60)).expect("flushed");
        let path = session.path(Sinks::MAP).expect("path");
        assert_ne!(path, parents);
        let map = std::fs::read_to_string(path).expect("map");
        assert_eq!(map, "1000 10 of the parent\n2000 10 of the child\n");
    });
    assert_eq!(std::fs::read_to_string(&parents).expect("map"), "1000 10 of the parent\n");
    session.close().expect("closed");

    let session = open(Fork::Alone);
    in_child(|| assert_eq!(session.register(&code(0x3000, "of the child")), Err(jitsym::Error::Forked)));
    session.close().expect("closed");
    std::fs::remove_dir_all(&dir).expect("remove the files");
}
