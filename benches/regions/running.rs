//! Code that runs: the same machine code in anonymous memory, in a created region and in an adopted one, in turns.

use crate::clock::{ticks, Scale};
use crate::interface::{anonymous, make_executable, Session};
use crate::statistics::Quartiles;
use crate::Figures;

/// Names of figures, and what they are of.
pub const PROGRAMS: [(&str, &str); 2] =
    [("tight", "a loop of 5 instructions"), ("wide", "calls of 16,384 functions, one in each 256 bytes of 4 MiB")];

const FUNCTIONS: usize = 16_384;
const APART: usize = 256;
const SIZE: u64 = (FUNCTIONS * APART) as u64;
const TURNS: usize = 5;

/// `loop: add rax, rdi; imul rax, rax, 3; dec rdi; jnz loop; ret`
const TIGHT: &[u8] = &[0x48, 0x01, 0xf8, 0x48, 0x6b, 0xc0, 0x03, 0x48, 0xff, 0xcf, 0x75, 0xf4, 0xc3];
/// `lea rax, [rdi+1]; ret`
const SMALL: &[u8] = &[0x48, 0x8d, 0x47, 0x01, 0xc3];

type Function = extern "C" fn(u64) -> u64;

fn function(addr: u64) -> Function {
    // SAFETY: only called with addresses at which one of the functions above was written.
    unsafe { std::mem::transmute::<usize, Function>(addr as usize) }
}

/// The first function is the loop, all others are small.
fn write(memory: u64) {
    for number in 0..FUNCTIONS {
        let code = if number == 0 { TIGHT } else { SMALL };
        // SAFETY: the memory is writable and has room for all functions.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), (memory as usize + number * APART) as *mut u8, code.len());
        }
    }
}

fn tight(memory: u64) {
    std::hint::black_box(function(memory)(3_000_000));
}

/// All small ones, in an order that leaves no page for the next one to be found in.
fn wide(memory: u64) {
    let (mut at, mut sum) = (1, 0);
    for _ in 0..20 * FUNCTIONS {
        sum = function(memory + (at * APART) as u64)(sum);
        at = (at * 5 + 1293) % FUNCTIONS;
        at = at.max(1);
    }
    std::hint::black_box(sum);
}

/// Medians over some turns, in nanoseconds. Nothing where the machine code is another one.
pub fn run(session: &Session) -> Figures {
    let mut figures = Figures::new();
    if !cfg!(target_arch = "x86_64") {
        return figures;
    }
    let plain = |adopt: bool| {
        let memory = anonymous(SIZE);
        write(memory);
        make_executable(memory, SIZE);
        if adopt {
            session.adopt(memory, SIZE);
        }
        memory
    };
    let created = session.create(SIZE);
    write(created.write);
    let kinds = [("anonymous", plain(false)), ("created", created.exec), ("adopted", plain(true))];
    let scale = Scale::calibrate();
    for (name, program) in [("tight", tight as fn(u64)), ("wide", wide)] {
        let mut times = [const { Vec::new() }; 3];
        for turn in 0..=TURNS {
            for ((_, memory), times) in kinds.iter().zip(&mut times) {
                let start = ticks();
                program(*memory);
                // The first one warms up.
                if turn > 0 {
                    times.push(scale.net_ns(ticks() - start, 1));
                }
            }
        }
        for ((kind, _), times) in kinds.iter().zip(times) {
            figures.insert(format!("{name}-{kind}"), Quartiles::of(times).median);
        }
    }
    figures
}
