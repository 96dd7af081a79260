//! The tracer: what it knows of threads and processes, and what its caller asks it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::process::{Child, Command, ExitStatus};

use crate::displaced::Displaced;
use crate::space::{Space, HARDWARE};
use crate::{maps, ptrace, spawn, Event, Instruction, Mapping, Registers, Tid};

/// How a thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Run,
    Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Running,
    Stopped,
    /// Stopped for job control.
    Listening,
    /// It goes on when another thread is over its breakpoint.
    Waiting,
}

/// How a thread gets over a breakpoint.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    Displaced(Displaced),
    InPlace(u64),
}

/// A thread.
pub struct Thread {
    pub pid: Tid,
    pub state: State,
    /// How it was made to go on last.
    pub mode: Mode,
    /// Those of this stop, once they were asked for; and whether they have to be written.
    pub registers: Option<Registers>,
    pub changed: bool,
    /// The breakpoint that it stands at, of which the caller knows.
    pub at: Option<u64>,
    pub over: Option<Over>,
    /// What it executes, or has executed, and whether the trap flag is the program's own.
    pub instruction: Option<Instruction>,
    pub own_trap_flag: bool,
    /// To be delivered when it goes on, and what was delivered last.
    pub signal: i32,
    pub delivered: i32,
    /// Whether the process is stopped for job control.
    pub group_stop: bool,
    pub interrupting: bool,
    /// What its debug registers contain.
    pub debug: [u64; HARDWARE],
}

impl Thread {
    pub fn new(pid: Tid) -> Thread {
        Thread {
            pid,
            state: State::Stopped,
            mode: Mode::Run,
            registers: None,
            changed: false,
            at: None,
            over: None,
            instruction: None,
            own_trap_flag: false,
            signal: 0,
            delivered: 0,
            group_stop: false,
            interrupting: false,
            debug: [0; HARDWARE],
        }
    }
}

/// Traces a process and all that it starts. They die with this value, and with the thread that has made it, unless they were let go.
pub struct Tracer {
    child: Child,
    pub(crate) threads: BTreeMap<Tid, Thread>,
    /// The memory that each process has.
    pub(crate) processes: BTreeMap<Tid, usize>,
    pub(crate) spaces: HashMap<usize, Space>,
    pub(crate) next_space: usize,
    /// New tasks that have reported before their makers.
    pub(crate) early: Vec<Tid>,
    pub(crate) events: VecDeque<Event>,
    /// Threads in the state `Waiting`, in the order in which they came.
    pub(crate) waiting: VecDeque<Tid>,
    status: Option<ExitStatus>,
    /// The system calls that are told.
    pub(crate) watched: &'static [i64],
}

pub(crate) fn no_such(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("no such {what}"))
}

impl Tracer {
    /// Starts a program, and stops it before its first instruction.
    pub fn spawn(command: Command) -> io::Result<Tracer> {
        let child = spawn::spawn(command)?;
        let pid = child.id() as Tid;
        let mut tracer = Tracer {
            child,
            threads: [(pid, Thread::new(pid))].into(),
            processes: [(pid, 0)].into(),
            spaces: HashMap::new(),
            next_space: 1,
            early: Vec::new(),
            events: VecDeque::new(),
            waiting: VecDeque::new(),
            status: None,
            watched: &[],
        };
        tracer.spaces.insert(0, Space::open(pid)?);
        Ok(tracer)
    }

    /// The process that was started.
    pub fn pid(&self) -> Tid {
        self.child.id() as Tid
    }

    /// The same for its pipes. Do not wait for it.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How the process that was started has ended, if it has.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// All threads of all processes.
    pub fn threads(&self) -> impl Iterator<Item = Tid> + '_ {
        self.threads.keys().copied()
    }

    /// All processes.
    pub fn processes(&self) -> impl Iterator<Item = Tid> + '_ {
        self.processes.keys().copied()
    }

    /// A thread's process.
    pub fn pid_of(&self, tid: Tid) -> Option<Tid> {
        Some(self.threads.get(&tid)?.pid)
    }

    /// Whether a thread is stopped, so that it can be asked for its registers and made to go on.
    pub fn is_stopped(&self, tid: Tid) -> bool {
        self.threads.get(&tid).is_some_and(|thread| thread.state == State::Stopped)
    }

    /// What a process has mapped.
    pub fn maps(&self, pid: Tid) -> io::Result<Vec<Mapping>> {
        maps::maps(pid)
    }

    /// The entry of the program that a process executes.
    pub fn entry(&self, pid: Tid) -> Option<u64> {
        self.spaces.get(self.processes.get(&pid)?)?.entry
    }

    /// The registers of a stopped thread.
    pub fn registers(&mut self, tid: Tid) -> io::Result<Registers> {
        let thread = self.threads.get_mut(&tid).ok_or_else(|| no_such("thread"))?;
        if let Some(registers) = thread.registers {
            return Ok(registers);
        }
        let registers = ptrace::registers(tid)?;
        thread.registers = Some(registers);
        Ok(registers)
    }

    /// Changes the registers of a stopped thread, from when it goes on.
    pub fn set_registers(&mut self, tid: Tid, registers: &Registers) -> io::Result<()> {
        let thread = self.threads.get_mut(&tid).ok_or_else(|| no_such("thread"))?;
        thread.registers = Some(*registers);
        thread.changed = true;
        Ok(())
    }

    /// The instruction that a stepped thread has executed last.
    pub fn executed(&self, tid: Tid) -> Option<&Instruction> {
        self.threads.get(&tid)?.instruction.as_ref()
    }

    /// Reads memory of a process as it is without breakpoints. Returns how much of it is there.
    pub fn read(&self, pid: Tid, addr: u64, out: &mut [u8]) -> io::Result<usize> {
        self.space(pid)?.read(addr, out)
    }

    /// A word of memory.
    pub fn word(&self, pid: Tid, addr: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        match self.read(pid, addr, &mut bytes)? {
            8 => Ok(u64::from_le_bytes(bytes)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes memory of a process, of read-only private mappings too. Breakpoints stay.
    pub fn write(&mut self, pid: Tid, addr: u64, bytes: &[u8]) -> io::Result<()> {
        self.space_mut(pid)?.write(addr, bytes)
    }

    /// Tells of the ends of these system calls, by threads that run. Each call of any kind stops a thread twice then. Threads that
    /// run already begin with it at their next stop.
    pub fn watch_syscalls(&mut self, numbers: &'static [i64]) {
        self.watched = numbers;
    }

    /// Stops each thread that comes to this address, before the instruction. A second one at the same address changes nothing.
    /// In shared memory the error is `QuotaExceeded` if the processor has no more.
    pub fn set_breakpoint(&mut self, pid: Tid, addr: u64) -> io::Result<()> {
        let maps = maps::maps(pid)?;
        let mapping = maps::find(&maps, addr);
        let mapping = mapping.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "nothing is mapped there"))?;
        // What is written there others would have, too.
        match mapping.shared {
            true => self.set_hardware_breakpoint(pid, addr),
            false => self.set_software_breakpoint(pid, addr),
        }
    }

    /// The same where the caller knows that the memory is private.
    pub fn set_software_breakpoint(&mut self, pid: Tid, addr: u64) -> io::Result<()> {
        self.space_mut(pid)?.set_breakpoint(addr)
    }

    /// The same by the processor alone: nothing is written, so that the address need not be that of an instruction.
    pub fn set_hardware_breakpoint(&mut self, pid: Tid, addr: u64) -> io::Result<()> {
        self.space_mut(pid)?.set_hardware_breakpoint(addr)?;
        self.update_debug_registers(pid);
        Ok(())
    }

    /// Removes one, if it is there.
    pub fn remove_breakpoint(&mut self, pid: Tid, addr: u64) -> io::Result<()> {
        let was = self.space(pid)?.breakpoint(addr);
        self.space_mut(pid)?.remove_breakpoint(addr);
        if matches!(was, Some(crate::space::Breakpoint::Hardware)) {
            self.update_debug_registers(pid);
        }
        Ok(())
    }

    /// Has those of the threads that run code stop, which is not told. Others get theirs when they go on.
    fn update_debug_registers(&mut self, pid: Tid) {
        let space = self.processes.get(&pid).copied();
        for (&tid, thread) in &self.threads {
            let is_there = self.processes.get(&thread.pid).copied() == space;
            if is_there && thread.state == State::Running && runs_code(tid) {
                // It may have ended.
                let _ = ptrace::interrupt(tid);
            }
        }
    }

    /// Stops a thread that runs, for `Event::Interrupted`. Some system calls fail with `EINTR` then, as they do for a debugger.
    pub fn interrupt(&mut self, tid: Tid) -> io::Result<()> {
        let thread = self.threads.get_mut(&tid).ok_or_else(|| no_such("thread"))?;
        if thread.state == State::Stopped {
            return Err(io::Error::other("the thread is stopped"));
        }
        thread.interrupting = true;
        ptrace::interrupt(tid)
    }

    /// Removes all breakpoints and lets everything run, until the process that was started has ended. Processes that live on then
    /// are not traced any more. Nothing is told of what happens on the way.
    pub fn let_go(&mut self) -> io::Result<Option<ExitStatus>> {
        self.remove_breakpoints();
        let stopped: Vec<Tid> = self.threads().filter(|&tid| self.is_stopped(tid)).collect();
        stopped.into_iter().try_for_each(|tid| self.resume(tid))?;
        while self.status.is_none() {
            match self.wait()? {
                Event::Done => break,
                event => self.go_on(event)?,
            }
        }
        // A first thread that has ended before others never stops.
        self.threads.retain(|&tid, _| !has_ended(tid));
        for (&tid, thread) in &mut self.threads {
            if thread.state != State::Stopped {
                thread.interrupting = true;
                // It may have ended.
                let _ = ptrace::interrupt(tid);
            }
        }
        while !self.threads.is_empty() {
            let event = self.wait()?;
            if event == Event::Done {
                break;
            }
            let stopped: Vec<Tid> = self.threads().filter(|&tid| self.is_stopped(tid)).collect();
            stopped.into_iter().try_for_each(|tid| self.detach(tid))?;
        }
        Ok(self.status)
    }

    fn remove_breakpoints(&mut self) {
        self.watched = &[];
        for space in self.spaces.values_mut() {
            let all: Vec<u64> = space.breakpoints().collect();
            all.into_iter().for_each(|addr| space.remove_breakpoint(addr));
        }
    }

    /// Lets all threads that an event names run.
    pub fn go_on(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Stepped { tid }
            | Event::Breakpoint { tid, .. }
            | Event::Handler { tid, .. }
            | Event::Signal { tid, .. }
            | Event::Syscall { tid, .. }
            | Event::Interrupted { tid }
            | Event::Exec { tid, .. } => self.resume(tid),
            Event::NewThread { tid, by } | Event::Forked { pid: tid, by, .. } => {
                self.resume(tid)?;
                self.resume(by)
            }
            Event::ThreadExited { .. } | Event::Exited { .. } | Event::Done => Ok(()),
        }
    }

    pub(crate) fn space(&self, pid: Tid) -> io::Result<&Space> {
        let space = self.processes.get(&pid).and_then(|space| self.spaces.get(space));
        space.ok_or_else(|| no_such("process"))
    }

    pub(crate) fn space_mut(&mut self, pid: Tid) -> io::Result<&mut Space> {
        let space = self.processes.get(&pid).and_then(|space| self.spaces.get_mut(space));
        space.ok_or_else(|| no_such("process"))
    }

    /// Notes how the first process has ended.
    pub(crate) fn ended(&mut self, pid: Tid, status: ExitStatus) {
        if pid == self.pid() {
            self.status = Some(status);
        }
    }
}

/// Whether a thread is in no system call.
fn runs_code(tid: Tid) -> bool {
    std::fs::read_to_string(format!("/proc/{tid}/syscall")).is_ok_and(|text| text.starts_with("running"))
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let mut left: Vec<Tid> = self.processes.keys().chain(&self.early).copied().collect();
        left.iter().for_each(|&pid| kill(pid));
        while !left.is_empty() {
            match ptrace::wait(-1, libc::__WNOTHREAD) {
                Ok(Some((tid, status))) if !libc::WIFSTOPPED(status) => left.retain(|&pid| pid != tid),
                // What it has made just then.
                Ok(Some((tid, _))) if !self.threads.contains_key(&tid) => kill(tid),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
    }
}

fn kill(pid: Tid) {
    // SAFETY: a number. It was not waited for yet, so it is no other process.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

/// Whether the kernel keeps only the status of a thread.
fn has_ended(tid: Tid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}
