//! The system calls of a tracer.

use std::io;
use std::mem::offset_of;

use crate::{Registers, Tid};

/// `PTRACE_EVENT_STOP` and its fellows are above the signal in a status.
pub const EVENT_SHIFT: i32 = 16;
/// What a thread is stopped by at a system call.
pub const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
/// `si_code` of `SIGTRAP`s that the kernel makes itself.
pub const SI_KERNEL: i32 = 0x80;
pub const TRAP_BRKPT: i32 = 1;
pub const TRAP_TRACE: i32 = 2;
pub const TRAP_HWBKPT: i32 = 4;

/// What is to be told of each tracee. It dies with the tracer.
const OPTIONS: i32 = libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_EXITKILL;

/// The C libraries have different types for it. For musl, the crate `libc` lacks the two numbers below.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;
const GET_SYSCALL_INFO: Request = 0x420e;
const SYSCALL_INFO_EXIT: u8 = 2;

/// A request that returns no value.
fn request(request: Request, tid: Tid, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: callers give the kernel addresses of memory of the right size, or numbers.
    match unsafe { libc::ptrace(request, tid, addr, data) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Begins to trace a process, which goes on running.
pub fn seize(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize)
}

pub fn cont(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as usize)
}

/// As `cont`, up to the begin or end of a system call.
pub fn to_syscall(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as usize)
}

/// Whether a thread is stopped at the end of a system call.
pub fn is_syscall_end(tid: Tid) -> io::Result<bool> {
    let mut info = [0u8; 88];
    // SAFETY: no more than the size that is given is written.
    let got = unsafe { libc::ptrace(GET_SYSCALL_INFO, tid, info.len(), info.as_mut_ptr()) };
    match got {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(info[0] == SYSCALL_INFO_EXIT),
    }
}

pub fn single_step(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SINGLESTEP, tid, 0, signal as usize)
}

/// Lets a thread stay stopped for job control, and tells when that ends.
pub fn listen(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0, 0)
}

pub fn interrupt(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

pub fn detach(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as usize)
}

pub fn registers(tid: Tid) -> io::Result<Registers> {
    // SAFETY: integers.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)?;
    Ok(registers)
}

pub fn set_registers(tid: Tid, registers: &Registers) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, &raw const *registers as usize)
}

/// The new task of a fork, the former thread id of an exec.
pub fn event_message(tid: Tid) -> io::Result<Tid> {
    let mut message: libc::c_ulong = 0;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message as usize)?;
    Ok(message as Tid)
}

pub fn signal_info(tid: Tid) -> io::Result<libc::siginfo_t> {
    // SAFETY: integers and an array of them.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info as usize)?;
    Ok(info)
}

/// Sets one of the processor's debug registers.
pub fn set_debug_register(tid: Tid, number: usize, value: u64) -> io::Result<()> {
    let at = offset_of!(libc::user, u_debugreg) + number * size_of::<u64>();
    request(libc::PTRACE_POKEUSER, tid, at, value as usize)
}

/// Sets r11 alone.
pub fn set_r11(tid: Tid, value: u64) -> io::Result<()> {
    let at = offset_of!(libc::user, regs) + offset_of!(libc::user_regs_struct, r11);
    request(libc::PTRACE_POKEUSER, tid, at, value as usize)
}

/// Waits for a change of a task, or of any that this thread traces or has started (-1). `None` if there is none, or (with
/// `WNOHANG`) if nothing has changed.
pub fn wait(tid: Tid, flags: i32) -> io::Result<Option<(Tid, i32)>> {
    let mut status = 0;
    loop {
        // SAFETY: the status is written.
        let found = unsafe { libc::waitpid(tid, &mut status, libc::__WALL | flags) };
        match found {
            0 => return Ok(None),
            -1 => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINTR) => continue,
                error if error.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
                error => return Err(error),
            },
            _ => return Ok(Some((found, status))),
        }
    }
}

/// Whether two processes have the same memory; `None` where the kernel does not tell.
pub fn share_memory(one: Tid, other: Tid) -> Option<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: numbers.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        -1 => None,
        order => Some(order == 0),
    }
}
