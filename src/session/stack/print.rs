//! Writes a stack as text, for crash handlers.

use std::io::{self, Write};
use std::process;
use std::time::Duration;

use super::entry::Memory;
use super::object::Object;
use super::step;
use crate::session::flush_from_signal;
use crate::sink::lookup;
use crate::sys::futex::keeping_errno;
use crate::sys::handler_file::write_to;
use crate::sys::registers::Registers;
use crate::sys::thread;

/// Further frames are not written.
const FRAMES_MAX: u32 = 256;
/// How long the call waits until the writer has processed the newest registrations.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);
/// Longer names of functions in programs and libraries are cut.
const NAME_ROOM: usize = 256;

/// Writes the stack whose innermost frame is `frame` to a descriptor, one line for each function.
pub fn print(descriptor: i32, frame: Registers) {
    // A failed flush only means that the newest code may have no name.
    let _ = flush_from_signal(FLUSH_TIMEOUT);
    keeping_errno(|| thread::quietly_writing(|| print_frames(descriptor, frame)));
}

fn print_frames(descriptor: i32, mut frame: Registers) {
    let mut number = 0;
    while number < FRAMES_MAX {
        let first = number;
        while number < FRAMES_MAX && print_registered(descriptor, number, number - first, &frame) {
            number += 1;
        }
        if number == first {
            print_loaded(descriptor, number, &frame);
            number += 1;
        }
        if step(&mut frame).is_err() {
            return;
        }
    }
}

/// Writes the line of a function at the frame's address in registered code (`Found::function_at`). Returns false if there is no
/// such function.
#[inline(never)]
fn print_registered(descriptor: i32, number: u32, inlined: u32, frame: &Registers) -> bool {
    let mut line = Line::new(number, frame.pc);
    let found = lookup::at(frame.code_addr(), |code| {
        let function = code.function_at(frame.code_addr(), inlined as usize)?;
        line.put(function.name);
        match function.is_inlined {
            true => line.put(b" (inlined)"),
            false => line.number(format_args!("+{:#x}", frame.pc - code.addr())),
        }
        if !function.file.is_empty() {
            line.put(b" at ");
            line.put(function.file);
            line.number(format_args!(":{}", function.line));
        }
        Some(())
    });
    // The write may take long, so no memory of the lookup may be in use meanwhile.
    let is_found = found.flatten().is_some();
    if is_found {
        line.write(descriptor);
    }
    is_found
}

/// Writes the line of a frame whose code is not registered.
#[inline(never)]
fn print_loaded(descriptor: i32, number: u32, frame: &Registers) {
    let addr = frame.code_addr();
    let mut line = Line::new(number, frame.pc);
    match Object::at(Memory { pid: process::id() }, addr) {
        None => line.put(b"??"),
        Some(object) => {
            let mut name = [0; NAME_ROOM];
            if let Some((len, distance)) = object.function_at(addr, &mut name) {
                line.put(&name[..len]);
                line.number(format_args!("+{:#x}", distance + (frame.pc - addr)));
                line.put(b" ");
            }
            line.put(b"in ");
            object.with_path(|path| line.put(path));
            line.number(format_args!("+{:#x}", object.offset_of(frame.pc)));
        }
    }
    line.write(descriptor);
}

/// A line of text. Lines that are too long are cut.
struct Line {
    bytes: [u8; Line::ROOM],
    len: usize,
}

impl Line {
    const ROOM: usize = 1024;

    fn new(number: u32, pc: u64) -> Line {
        let mut line = Line { bytes: [0; Line::ROOM], len: 0 };
        line.number(format_args!("#{number:<3} {pc:#018x} "));
        line
    }

    fn put(&mut self, text: &[u8]) {
        // The last byte is for the newline.
        let room = &mut self.bytes[self.len..Line::ROOM - 1];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text[..len]);
        self.len += len;
    }

    fn number(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a line cannot fail, because a line cuts the text.
        let _ = self.write_fmt(text);
    }

    fn write(&mut self, descriptor: i32) {
        self.bytes[self.len] = b'\n';
        write_to(descriptor, &self.bytes[..=self.len]);
    }
}

impl Write for Line {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.put(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
