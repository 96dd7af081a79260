//! Walks the stack of a thread, through registered code and the code of programs and libraries. Signal handlers can call this
//! module: nothing here takes a lock or allocates memory. Memory that may be invalid is read by system calls.

mod entry;
mod object;
mod print;

use std::process;

use self::entry::Memory;
use self::object::Object;
pub use self::print::print;
use crate::api::error::{Error, Result};
use crate::format::arch::NATIVE;
use crate::format::cfi::step::{caller, caller_without_table, End, Section};
use crate::sink::lookup::{self, Found};
use crate::sys::futex::keeping_errno;
use crate::sys::registers::{self, Registers};
use crate::sys::thread;

/// Changes the registers of a frame to those of the frame's caller. `NotFound` if the frame is the outermost frame, or if its
/// caller cannot be found.
pub fn step(frame: &mut Registers) -> Result<()> {
    let arch = NATIVE.filter(|_| registers::ARE_KNOWN).ok_or(Error::Arch)?;
    let memory = Memory { pid: process::id() };
    let read = |addr: u64| memory.pointer(addr);
    let by = |section: Section<'_>| caller(arch, &section, frame, &read);
    let registered = lookup::at(frame.code_addr(), |code| table_of(&code).map_or(Err(End::NoTable), by));
    let found = registered.unwrap_or_else(|| {
        let entry = Object::at(memory, frame.code_addr()).and_then(|object| object.entry_of(frame.code_addr()));
        entry.map_or(Err(End::NoTable), |entry| by(entry.section()))
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
    Some(Section { eh_frame, addr })
}

/// Like `step`, and does not change `errno`.
pub fn step_in_handler(frame: &mut Registers) -> Result<()> {
    keeping_errno(|| thread::uncancelled(|| step(frame)))
}
