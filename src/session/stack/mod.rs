//! Walks the stack of a thread, through registered code and the code of programs and libraries. Signal handlers can call this
//! module: nothing here takes a lock or allocates memory. Memory that may be invalid is read by system calls.

mod object;
mod print;

use std::process;

use self::object::Object;
pub use self::print::print;
use crate::api::error::{Error, Result};
use crate::format::arch::NATIVE;
use crate::format::cfi::step::{caller, caller_without_table, End, Section};
use crate::sink::lookup::{self, Found};
use crate::sys::futex::keeping_errno;
use crate::sys::process_memory;
use crate::sys::registers::Registers;

/// Changes the registers of a frame to those of the frame's caller. `NotFound` if the frame is the outermost frame, or if its
/// caller cannot be found.
pub fn step(frame: &mut Registers) -> Result<()> {
    let arch = NATIVE.ok_or(Error::Arch)?;
    let pid = process::id();
    let read = |addr: u64| {
        let mut word = [0; 8];
        (process_memory::read(pid, addr, &mut word) == word.len()).then(|| u64::from_ne_bytes(word))
    };
    let by = |section: Section<'_>| caller(arch, &section, frame, &read);
    let registered = lookup::at(frame.code_addr(), |code| table_of(&code).map_or(Err(End::NoTable), by));
    let found = registered.unwrap_or_else(|| {
        let object = Object::at(pid, frame.code_addr()).ok_or(End::NoTable)?;
        // SAFETY: the thread executes code of the object, so the object stays loaded.
        unsafe { object.unwind_table() }.map_or(Err(End::NoTable), by)
    });
    let found = match found {
        Err(End::NoTable) => caller_without_table(arch, frame, &read),
        found => found,
    };
    *frame = found.map_err(|_| Error::NotFound)?;
    Ok(())
}

/// The unwind table of registered code.
fn table_of<'a>(code: &Found<'a>) -> Option<Section<'a>> {
    let eh_frame = code.info().parts().eh_frame()?;
    // The table was made for the first multiple of 8 after the code.
    let addr = code.addr().checked_add(code.size().checked_next_multiple_of(8)?)?;
    Some(Section { eh_frame, addr, header: None })
}

/// Like `step`, and does not change `errno`.
pub fn step_in_handler(frame: &mut Registers) -> Result<()> {
    keeping_errno(|| step(frame))
}
