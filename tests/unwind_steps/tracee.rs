//! A child that is executed instruction by instruction.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use object::{Object, ObjectSymbol};

/// A stopped process. It dies with this value, and with the thread that has started it.
pub struct Tracee {
    child: Child,
    memory: File,
    /// Where its program lies.
    base: u64,
}

/// `int3`
const BREAKPOINT: u8 = 0xcc;

fn ptrace(request: libc::c_uint, pid: u32, addr: u64, data: u64) {
    // SAFETY: the requests made here read or write `data` bytes at most where their callers say.
    let result = unsafe { libc::ptrace(request, pid as libc::pid_t, addr, data) };
    assert!(result == 0, "ptrace {request}: {}", io::Error::last_os_error());
}

impl Tracee {
    /// Starts a program, and stops it before its first instruction.
    pub fn start(command: &mut Command, program: &Path) -> Tracee {
        // SAFETY: two system calls, which are safe in a child before exec.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        let child = command.spawn().expect("start the program");
        let pid = child.id();
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("its memory");
        let mut tracee = Tracee { child, memory, base: 0 };
        assert_eq!(tracee.wait(), Some(libc::SIGTRAP));
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL as u64);
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
        let program = std::fs::canonicalize(program).expect("the program");
        let first =
            maps.lines().find(|line| line.ends_with(program.to_str().expect("a name"))).expect("the program's mapping");
        tracee.base = u64::from_str_radix(first.split('-').next().unwrap_or(""), 16).expect("an address");
        tracee
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The address of a function of the program.
    pub fn function(&self, program: &Path, name: &str) -> u64 {
        let file = std::fs::read(program).expect("read the program");
        let file = object::File::parse(&*file).expect("an ELF file");
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a symbol");
        self.base + symbol.address()
    }

    /// Waits until it stops, for the signal that is returned; `None` if it has ended well.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: the status is written.
        let pid = unsafe { libc::waitpid(self.pid() as libc::pid_t, &mut status, 0) };
        assert_eq!(pid, self.pid() as libc::pid_t, "{}", io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            return Some(libc::WSTOPSIG(status));
        }
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x}");
        None
    }

    /// Executes one instruction.
    pub fn step(&mut self) {
        ptrace(libc::PTRACE_SINGLESTEP, self.pid(), 0, 0);
        assert_eq!(self.wait(), Some(libc::SIGTRAP));
    }

    /// Runs until it gets to an address, or (`false`) to its end.
    pub fn run_to(&mut self, addr: u64) -> bool {
        let mut before = [0];
        self.read(addr, &mut before);
        self.memory.write_all_at(&[BREAKPOINT], addr).expect("set a breakpoint");
        ptrace(libc::PTRACE_CONT, self.pid(), 0, 0);
        let Some(signal) = self.wait() else { return false };
        let mut registers = self.registers();
        assert_eq!((signal, registers.rip), (libc::SIGTRAP, addr + 1), "stopped elsewhere");
        registers.rip = addr;
        ptrace(libc::PTRACE_SETREGS, self.pid(), 0, &raw const registers as u64);
        self.memory.write_all_at(&before, addr).expect("remove the breakpoint");
        true
    }

    pub fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: integers.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETREGS, self.pid(), 0, &raw mut registers as u64);
        registers
    }

    pub fn read(&self, addr: u64, out: &mut [u8]) {
        self.memory.read_exact_at(out, addr).unwrap_or_else(|error| panic!("memory at {addr:#x}: {error}"));
    }

    pub fn word(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
