//! The C interface: any sequence of calls by two threads, with anything in their structs that C can hand over without breaking
//! its promises about memory. What must hold: nothing crashes or is printed, every status is a known one, an output is
//! written on success only, and `jitsym check` finds no error in the files.
#![no_main]

#[path = "c_api/input.rs"]
mod input;
#[path = "c_api/memory.rs"]
mod memory;
#[path = "c_api/place.rs"]
mod place;

use std::ffi::c_char;
use std::mem::size_of;
use std::sync::{Mutex, OnceLock};

use ::jitsym::capi::status::jitsym_status;
use ::jitsym::capi::types::{jitsym, jitsym_code, jitsym_move_target, jitsym_options, jitsym_stats, jitsym_unwind};
use ::jitsym::capi::*;
use input::{Call, CodeIn, Id, Input, OptionsIn, Session, SizeIn, TargetIn};
use libfuzzer_sys::fuzz_target;
use memory::Memory;
use place::Place;

/// Below this is what a call may come to; the last one says that the library has failed.
const INTERNAL: i32 = jitsym_status::JITSYM_ERR_INTERNAL as i32;

/// What the calls of one run know of each other, whatever thread makes them.
#[derive(Default)]
struct Known {
    sessions: Vec<usize>,
    ids: Vec<u64>,
}

struct Run<'a> {
    known: Mutex<Known>,
    place: &'a Place,
}

/// Checks a status; returns whether it is success.
fn good(status: jitsym_status) -> bool {
    let number = status as i32;
    assert!((0..INTERNAL).contains(&number), "status {number}");
    number == 0
}

impl Run<'_> {
    fn session(&self, session: &Session) -> *mut jitsym {
        let known = &self.known.lock().expect("not poisoned").sessions;
        let value = match *session {
            Session::Known(at) if !known.is_empty() => known[at as usize % known.len()],
            Session::Known(_) => 0,
            Session::Like(at, change) => known.get(at as usize % known.len().max(1)).unwrap_or(&0) ^ change as usize,
            Session::Wild(value) => value as usize,
        };
        value as *mut jitsym
    }

    fn id(&self, id: &Id) -> u64 {
        let known = &self.known.lock().expect("not poisoned").ids;
        match *id {
            Id::Known(at) if !known.is_empty() => known[at as usize % known.len()],
            Id::Known(_) => 0,
            Id::Like(at, change) => known.get(at as usize % known.len().max(1)).unwrap_or(&0) ^ change,
            Id::Wild(value) => value,
        }
    }

    fn init(&self, options: &Option<OptionsIn>, memory: &mut Memory) {
        let options = match options {
            Some(options) => options.place(self.place, memory),
            None => std::ptr::null(),
        };
        let sentinel = 0x5a5a_usize as *mut jitsym;
        let mut session = sentinel;
        // SAFETY: `options` is NULL or points to a struct as large as it says, as does what it points to.
        if good(unsafe { jitsym_init(options.cast::<jitsym_options>(), &mut session) }) {
            self.known.lock().expect("not poisoned").sessions.push(session as usize);
        } else {
            assert_eq!(session, sentinel);
        }
    }

    fn register(&self, session: &Session, code: &CodeIn, times: u8, memory: &mut Memory) {
        let code = code.place(self.place, memory);
        for _ in 0..times {
            let mut id = 0x5a5a;
            // SAFETY: `code` points to a struct as large as it says, as does what it points to.
            if good(unsafe { jitsym_register(self.session(session), code.cast::<jitsym_code>(), &mut id) }) {
                assert_ne!(id, 0x5a5a);
                self.known.lock().expect("not poisoned").ids.push(id);
            } else {
                assert_eq!(id, 0x5a5a);
            }
        }
    }

    fn move_code(&self, session: &Session, id: &Id, target: &TargetIn, memory: &mut Memory) {
        let target = target.place(self.place, memory);
        // SAFETY: `target` points to a struct as large as it says; its `bytes` are as many as the largest code that is given.
        good(unsafe { jitsym_move(self.session(session), self.id(id), target.cast::<jitsym_move_target>()) });
    }

    fn stats(&self, session: &Session, size: &SizeIn, memory: &mut Memory) {
        // As many are written as there are fields; no size is taken for garbage.
        let size = size.of(size_of::<jitsym_stats>()).min(1 << 16);
        let out = memory.array(&[size.to_ne_bytes().to_vec()], 1, size.max(size_of::<usize>()));
        // SAFETY: as many bytes are writable there as the first word says.
        good(unsafe { jitsym_get_stats(self.session(session), out.cast::<jitsym_stats>().cast_mut()) });
    }

    fn text(&self, session: &Session, sink: Option<u32>, size: u16, memory: &mut Memory) {
        let buffer = memory.bytes(vec![0xaa; size as usize]).cast::<c_char>().cast_mut();
        let session = self.session(session);
        // SAFETY: `size` bytes are writable there.
        let status = unsafe {
            match sink {
                Some(sink) => jitsym_path(session, sink, buffer, size.into()),
                None => jitsym_last_error(session, buffer, size.into()),
            }
        };
        if good(status) {
            // SAFETY: as above.
            let text = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), size.into()) };
            let end = text.iter().position(|&byte| byte == 0).expect("a NUL");
            assert!(std::str::from_utf8(&text[..end]).is_ok() || sink.is_none());
        }
    }

    /// Makes the calls. The memory that they are given lives on until all sessions are closed: code may be stable.
    fn play(&self, calls: &[Call]) -> Memory {
        let mut memory = Memory::default();
        for call in calls {
            match call {
                Call::Init(options) => self.init(options, &mut memory),
                Call::Register(session, code) => self.register(session, code, 1, &mut memory),
                Call::Again(session, code, times) => self.register(session, code, *times, &mut memory),
                Call::Move(session, id, target) => self.move_code(session, id, target, &mut memory),
                Call::Unregister(session, id) => drop(good(jitsym_unregister(self.session(session), self.id(id)))),
                Call::Range(session, addr, size) => {
                    good(jitsym_unregister_range(self.session(session), addr.of(self.place), size.of(), 0));
                }
                Call::Flush(session, timeout) => drop(good(jitsym_flush(self.session(session), (*timeout).into()))),
                Call::Close(session) => drop(good(jitsym_close(self.session(session)))),
                Call::Stats(session, size) => self.stats(session, size, &mut memory),
                Call::LastError(session, size) => self.text(session, None, *size, &mut memory),
                Call::Path(session, sink, size) => self.text(session, Some(*sink), *size, &mut memory),
                Call::Nothing => {
                    // SAFETY: NULL is refused.
                    good(unsafe { jitsym_register(self.session(&Session::Known(0)), std::ptr::null(), &mut 0) });
                }
            }
        }
        memory
    }
}

static PLACE: OnceLock<Place> = OnceLock::new();

fuzz_target!(init: { PLACE.get_or_init(Place::new); }, |input: Input| {
    let place = PLACE.get_or_init(Place::new);
    let quiet = place.begin_run();
    let run = Run { known: Mutex::default(), place };
    // Nearly nothing happens without a session.
    run.init(&Some(OptionsIn::default()), &mut Memory::default());
    let memory = std::thread::scope(|scope| {
        let other = (!input.other.is_empty()).then(|| scope.spawn(|| run.play(&input.other)));
        (run.play(&input.calls), other.map(|other| other.join().expect("no panic")))
    });
    let sessions = std::mem::take(&mut run.known.lock().expect("not poisoned").sessions);
    for session in sessions {
        // It may be closed already.
        good(jitsym_close(session as *mut jitsym));
    }
    drop(memory);
    place.end_run(quiet);
});
