//! The same through the C interface: descriptions that are given again and again, and slightly altered in the same memory,
//! registered and read back from the jitdump. So tables that were kept for another description would show.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use ::jitsym::capi::types::*;
use ::jitsym::capi::*;
use ::jitsym::format::arch::{Arch, NATIVE};
use ::jitsym::{Error, SavedRegister, SigningKey};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::model::{expected, Description, Places, Saved, States};
use super::section::section;
use super::steps::{step, Change, Given, Size, Step, SIZE_MAX};
use super::{config, generate};
use crate::cfi::read_dump;
use crate::support::{checker, scratch_dir};

/// Code is placed here and above, as if it were there; it is never run.
const CODE: u64 = 0x5000_0000_0000;
const DISTANCE: u64 = 2 * SIZE_MAX;

/// The memory of a caller that writes each description to where the one before was.
struct Memory {
    /// The struct, and two words that this version of the library does not know.
    unwind: (jitsym_unwind, [u64; 2]),
    saved: Vec<SavedRegister>,
    rows: Vec<jitsym_unwind_row>,
    section: Vec<u8>,
}

impl Memory {
    fn new() -> Self {
        // SAFETY: integers and pointers.
        let unwind = unsafe { std::mem::zeroed() };
        let (saved, rows, section) =
            (Vec::with_capacity(1 << 15), Vec::with_capacity(1 << 9), Vec::with_capacity(1 << 16));
        Memory { unwind: (unwind, [0; 2]), saved, rows, section }
    }

    fn keep(&mut self, saved: &[SavedRegister]) -> *const jitsym_saved_register {
        let from = self.saved.len();
        assert!(from + saved.len() <= self.saved.capacity(), "the memory would move");
        self.saved.extend_from_slice(saved);
        self.saved[from..].as_ptr().cast()
    }

    /// Writes a description for code at an address.
    fn write(&mut self, given: &Given, step: &Step, code: u64) -> *const jitsym_unwind {
        self.saved.clear();
        let (garbage, wild) = (step.garbage, ptr::without_provenance(step.garbage as usize));
        let mut unwind = jitsym_unwind {
            struct_size: size_of::<jitsym_unwind>() + if step.larger { 16 } else { 0 },
            kind: 0,
            flags: 0,
            fp_pushed: garbage,
            fp_set: garbage,
            epilogue_begin: garbage,
            epilogue_end: garbage,
            cfa_offset: garbage as i32,
            saved_count: garbage,
            saved: wild,
            saved_from: garbage,
            row_count: garbage,
            rows: wild.cast(),
            row_size: garbage as usize,
            eh_frame: wild.cast(),
            eh_frame_size: garbage as usize,
            eh_frame_addr: garbage.into(),
            sp_set: garbage,
            sp_reset: garbage,
        };
        if let Given::Described(description) = given {
            unwind.flags = match description.signed() {
                None => 0,
                Some(SigningKey::A) => jitsym_unwind_flag::JITSYM_UNWIND_PACIASP as u32,
                Some(SigningKey::B) => jitsym_unwind_flag::JITSYM_UNWIND_PACIBSP as u32,
            };
        }
        match given {
            Given::Described(Description::FramePointer(places, cfa_offset, saved)) => {
                unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_FRAME_POINTER as u32;
                (unwind.fp_pushed, unwind.fp_set, unwind.saved_from) = (places.pushed, places.set, places.saved_from);
                (unwind.epilogue_begin, unwind.epilogue_end) = (places.epilogue_begin, places.epilogue_end);
                (unwind.cfa_offset, unwind.saved_count) = (*cfa_offset, saved.len() as u32);
                unwind.saved = self.keep(saved);
            }
            Given::Described(Description::FixedFrame(places, cfa_offset, saved)) => {
                unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_FIXED_FRAME as u32;
                (unwind.fp_pushed, unwind.sp_set, unwind.saved_from) =
                    (places.pushed, places.sp_set, places.saved_from);
                (unwind.epilogue_begin, unwind.epilogue_end) = (places.epilogue_begin, places.epilogue_end);
                unwind.sp_reset = places.sp_reset;
                (unwind.cfa_offset, unwind.saved_count) = (*cfa_offset, saved.len() as u32);
                unwind.saved = self.keep(saved);
            }
            Given::Described(Description::Rows(rows)) => {
                unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_ROWS as u32;
                assert!(rows.len() <= self.rows.capacity(), "the memory would move");
                self.rows.clear();
                for row in rows {
                    let saved = self.keep(&row.saved);
                    let (saved_count, cfa_reg) = (row.saved.len() as u32, row.cfa_register);
                    let (offset, cfa_offset) = (row.offset, row.cfa_offset);
                    self.rows.push(jitsym_unwind_row { offset, cfa_reg, cfa_offset, saved_count, saved });
                }
                (unwind.rows, unwind.row_count) = (self.rows.as_ptr(), rows.len() as u32);
                unwind.row_size = if step.row_size_known { size_of::<jitsym_unwind_row>() } else { 0 };
            }
            Given::Section(section) => {
                unwind.kind = jitsym_unwind_kind::JITSYM_UNWIND_EH_FRAME as u32;
                let at = code.wrapping_add_signed(section.distance);
                let bytes = section.bytes(at, code);
                assert!(bytes.len() <= self.section.capacity(), "the memory would move");
                self.section.clear();
                self.section.extend_from_slice(&bytes);
                (unwind.eh_frame, unwind.eh_frame_size) = (self.section.as_ptr().cast(), bytes.len());
                unwind.eh_frame_addr = at;
            }
        }
        self.unwind.0 = unwind;
        (&raw const self.unwind).cast()
    }
}

/// An open session, and how far its jitdump has been read.
struct Session {
    handle: *mut jitsym,
    dir: PathBuf,
    dump: std::fs::File,
    read: u64,
    next: u64,
}

/// Code that must be in the jitdump.
struct Announced {
    addr: u64,
    size: u64,
    states: States,
    has_gap: bool,
}

impl Session {
    fn open() -> Session {
        let dir = scratch_dir("c-interface");
        let name = CString::new(dir.as_os_str().as_bytes()).expect("a directory");
        // SAFETY: integers and pointers.
        let mut options: jitsym_options = unsafe { std::mem::zeroed() };
        options.struct_size = size_of::<jitsym_options>();
        options.sinks = 2;
        options.jitdump_dir = name.as_ptr();
        let mut handle = ptr::null_mut();
        // SAFETY: all pointers are valid.
        assert_eq!(unsafe { jitsym_init(&options, &mut handle) } as u32, 0);
        let dump = dir.join(format!("jit-{}.dump", std::process::id()));
        Session { handle, dir, dump: std::fs::File::open(dump).expect("jitdump"), read: 40, next: CODE }
    }

    fn new_place(&mut self) -> u64 {
        self.next += DISTANCE;
        self.next
    }

    /// Registers code, and moves it; what must be in the jitdump for it.
    fn announce(
        &mut self,
        memory: &mut Memory,
        given: &Given,
        size: u64,
        step: &Step,
        announced: &mut Vec<Announced>,
    ) -> Result<(), TestCaseError> {
        let addr = self.new_place();
        let unwind = memory.write(given, step, addr);
        let expected = match given {
            Given::Described(description) => expected(NATIVE.expect("an architecture"), description, size),
            Given::Section(section) => Some(section.expected(Arch::X86_64, size))
                .filter(|it| it.iter().any(|row| row.1.is_some()))
                .ok_or(vec![Error::UnwindFormat]),
        };
        let bytes = vec![0xc3u8; size as usize];
        // SAFETY: integers and pointers.
        let mut code: jitsym_code = unsafe { std::mem::zeroed() };
        (code.struct_size, code.addr, code.size) = (size_of::<jitsym_code>(), addr, size);
        let name = if step.unclean { c"co\tde" } else { c"code" };
        (code.name, code.bytes) = (name.as_ptr(), bytes.as_ptr().cast());
        code.unwind = unwind;
        code.flags = if step.gap { jitsym_code_flag::JITSYM_CODE_GAP as u32 } else { 0 };
        let mut id = 0;
        // SAFETY: all pointers are valid for what they say.
        let status = unsafe { jitsym_register(self.handle, &code, &mut id) } as u32;

        let states = match expected {
            Ok(states) => states,
            Err(faults) => {
                let among = faults.iter().any(|&fault| fault as u32 == status);
                prop_assert!(among, "status {} where {:?} is wrong", status, faults);
                return Ok(());
            }
        };
        prop_assert_eq!(status, 0, "of a good description");
        announced.push(Announced { addr, size, states: states.clone(), has_gap: step.gap });
        if step.moved {
            let addr = self.new_place();
            let target = jitsym_move_target {
                struct_size: size_of::<jitsym_move_target>(),
                addr,
                bytes: bytes.as_ptr().cast(),
                // The gap is at one of the two places.
                flags: if step.gap { 0 } else { jitsym_code_flag::JITSYM_CODE_GAP as u32 },
                reserved: 0,
            };
            // SAFETY: all pointers are valid.
            prop_assert_eq!(unsafe { jitsym_move(self.handle, id, &target) } as u32, 0);
            announced.push(Announced { addr, size, states, has_gap: !step.gap });
        }
        Ok(())
    }

    /// Reads what has been written since, and compares.
    fn check(&mut self, announced: &[Announced]) -> Result<(), TestCaseError> {
        prop_assert_eq!(jitsym_flush(self.handle, 60_000) as u32, 0);
        let len = self.dump.metadata().expect("jitdump").len();
        let mut bytes = vec![0; (40 + len - self.read) as usize];
        let (header, rest) = bytes.split_at_mut(40);
        self.dump.read_exact_at(header, 0).expect("header");
        self.dump.read_exact_at(rest, self.read).expect("records");
        self.read = len;
        let dumped = read_dump(&*bytes);
        prop_assert_eq!(dumped.len(), announced.len(), "pieces of code");
        for (dumped, announced) in dumped.iter().zip(announced) {
            let size = announced.size;
            prop_assert_eq!((dumped.addr, dumped.code.len() as u64), (announced.addr, size));
            let decoded = dumped.decoded().map_err(TestCaseError::fail)?;
            let decoded = decoded.ok_or_else(|| TestCaseError::fail("no tables"))?;
            decoded.compare(&announced.states, 0..size).map_err(TestCaseError::fail)?;
            if let Some((eh_frame, hdr, mapped)) = &dumped.tables {
                let whole = (eh_frame.len() + hdr.len()) as u64;
                let has_room = announced.has_gap && size.next_multiple_of(8) - size + whole <= 256;
                prop_assert_eq!(*mapped, if has_room { whole } else { 0 }, "of {} bytes", whole);
            }
        }
        // What is gone is not looked at any more.
        prop_assert_eq!(jitsym_unregister_range(self.handle, CODE, self.next + DISTANCE - CODE, 0) as u32, 0);
        Ok(())
    }

    fn close(self) {
        assert_eq!(jitsym_close(self.handle) as u32, 0);
        // Sections need not have entries for all of the code.
        assert!(checker::assert_all_sound(&self.dir, &["unwind-fde-range"]) > 0);
        std::fs::remove_dir_all(self.dir).expect("remove the files");
    }
}

// SAFETY: the handle is good in any thread; what it points to is the library's.
unsafe impl Send for Session {}

/// Registers what the steps make of the descriptions, in a thread of its own: what a thread has kept ends with it, so that a
/// case does not depend on those before.
fn case(session: &mut Session, mut pool: Vec<(Given, u64)>, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let register = move || {
        let (mut memory, mut announced) = (Memory::new(), Vec::new());
        let steps = steps.iter().try_for_each(|step| {
            let at = step.which % pool.len();
            let (given, size) = &mut pool[at];
            if let Given::Described(description) = given {
                step.change.apply(description);
            }
            *size = step.size.apply(given, *size);
            session.announce(&mut memory, given, *size, step, &mut announced)
        });
        // Read in any case, so that the next one begins behind it.
        let checked = session.check(&announced);
        steps.and(checked)
    };
    std::thread::scope(|scope| match scope.spawn(register).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Code that ends where its epilogue begins, and then the same description for code that goes on.
fn ends_at_its_epilogue(epilogue_begin: u32) -> (Vec<(Given, u64)>, Vec<Step>) {
    let places = Places { pushed: 0, set: 0, saved_from: 0, epilogue_begin, epilogue_end: 0, signed: None };
    let given = Given::Described(Description::FramePointer(places, 0, Saved::new()));
    let step = |size| Step {
        which: 0,
        change: Change::None,
        size,
        garbage: 0,
        larger: false,
        row_size_known: true,
        unclean: false,
        gap: false,
        moved: false,
    };
    (vec![(given, epilogue_begin.into())], vec![step(Size::Same), step(Size::Other(7)), step(Size::Other(-7))])
}

#[test]
fn what_is_registered_is_in_the_jitdump() {
    let arch = NATIVE.expect("an architecture");
    let sizes = || prop_oneof![4 => 1u64..=40, 4 => 1u64..=200];
    let described = sizes().prop_flat_map(move |size| {
        generate::description(arch, size).prop_map(move |description| (Given::Described(description), size))
    });
    let given = prop_oneof![12 => described, 1 => (section().prop_map(Given::Section), sizes())].boxed();
    // As a runtime with a few frame layouts, and as one with more than the library keeps.
    let pool = prop_oneof![3 => vec(given.clone(), 1..=4), 1 => vec(given, 18..=24)];
    let mut session = Session::open();
    // Found by chance once.
    let (descriptions, steps) = ends_at_its_epilogue(19);
    let known = case(&mut session, descriptions, steps);
    let open = Mutex::new(&mut session);
    let random = TestRunner::new(config(250)).run(&(pool, vec(step(), 1..=40)), |(pool, steps)| {
        case(&mut open.lock().unwrap_or_else(PoisonError::into_inner), pool, steps)
    });
    session.close();
    assert_eq!(known.map_err(|failure| failure.to_string()), Ok(()));
    if let Err(failure) = random {
        panic!("{failure}");
    }
}
