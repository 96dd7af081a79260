//! Steps through the calls of registered functions. Programs and libraries that the functions call run without steps.

mod entry;
mod events;
mod judge;
mod observe;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use iced_x86::FlowControl;
use jitsym_step::{Change, Event, Frame, Kind as FrameKind, Shadow, Tid, Tracer};

use super::finding::{Coverage, Findings};
use super::process::{Place, Process};
use super::truth::Seen;
use super::Options;

/// System calls after which files may have grown, or new memory may be mapped.
const WATCHED: &[i64] = &[
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_mmap,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
];
/// The time between checks of files that are written without system calls.
const LOOK: Duration = Duration::from_millis(20);
/// After this number of steps through known code, a thread runs to the next address that it has not reached before.
const DULL: u64 = 400;
/// The maximum number of such runs in one call.
const ON_MAX: u32 = 200;
/// The number of bytes of a stack that are copied below the stack pointer, and the maximum in total.
const BELOW: u64 = 128;
const STACK_MAX: u64 = 16 << 10;
/// The maximum number of observations that are kept until the end: for one address, and in total.
const OPEN_OF_ONE: usize = 4;
const OPEN_MAX: usize = 50_000;
const SYSCALL: u16 = 0x050f;
/// Code that begins at most this far after a piece is treated as the rest of the piece.
const BEHIND: u64 = 64;

/// The mode in which a thread is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Freely.
    Free,
    /// Step by step.
    Steps,
    /// Freely, until it reaches one of `Thread::points`.
    Through,
}

/// An address, and the stack pointer that identifies the call there.
type Point = (u64, u64);

#[derive(Clone, Copy)]
struct Call {
    id: u64,
    /// Whether unknown calls may be between this call and the preceding call.
    is_apart: bool,
}

struct Thread {
    mode: Mode,
    shadow: Shadow,
    /// The call for each frame of the shadow stack.
    calls: Vec<Call>,
    /// The addresses at which a running thread stops.
    points: Vec<Point>,
    /// The branch targets that were not taken, with the depth of the frame.
    sides: Vec<(usize, Point)>,
    /// How many times the thread has run freely to a new address.
    ran_on: u32,
    /// The state before the last step.
    rip: u64,
    rsp: u64,
    /// The number of steps since a new instruction was reached.
    dull: u64,
    came_from: u64,
}

impl Default for Thread {
    fn default() -> Thread {
        Thread {
            mode: Mode::Free,
            shadow: Shadow::default(),
            calls: Vec::new(),
            points: Vec::new(),
            sides: Vec::new(),
            ran_on: 0,
            rip: 0,
            rsp: 0,
            dull: 0,
            came_from: 0,
        }
    }
}

impl Thread {
    /// Removes all calls except the `len` outermost calls.
    fn truncate(&mut self, len: usize) {
        self.calls.truncate(len);
        self.sides.retain(|&(depth, _)| depth <= len);
    }
}

pub struct Walk<'a> {
    tracer: Tracer,
    options: &'a Options,
    progress: &'a mut dyn FnMut(u64, u64),
    processes: HashMap<Tid, Process>,
    /// The process whose memory each process uses.
    homes: HashMap<Tid, Tid>,
    threads: HashMap<Tid, Thread>,
    /// Observations that did not match, or that are about unknown code.
    open: Vec<(Tid, Seen)>,
    open_of_one: HashMap<(Tid, u64), usize>,
    /// Instructions whose bytes were compared, by process, piece and address, and the instructions whose tables were right.
    compared: HashSet<(Tid, usize, u64)>,
    proved: HashSet<(Tid, usize, u64)>,
    /// Addresses that were executed.
    been: HashSet<(Tid, u64)>,
    entered: HashSet<(Tid, usize)>,
    /// The registers that each returned call has left unchanged.
    kept: HashMap<u64, BTreeSet<u16>>,
    /// Calls that are uncertain until they return, with the instructions that are right if the calls are real.
    unsure: HashMap<u64, Vec<(Tid, usize, u64)>>,
    /// Calls that only the tables describe, with the first observation in each call.
    claims: HashMap<u64, Option<(Tid, Seen)>>,
    /// The thread that is executing an instruction other than a system call.
    stepping: Option<Tid>,
    next_call: u64,
    findings: Findings,
    coverage: Coverage,
    begin: Instant,
}

impl<'a> Walk<'a> {
    pub fn new(tracer: Tracer, options: &'a Options, progress: &'a mut dyn FnMut(u64, u64)) -> Walk<'a> {
        Walk {
            tracer,
            options,
            progress,
            processes: HashMap::new(),
            homes: HashMap::new(),
            threads: HashMap::new(),
            open: Vec::new(),
            open_of_one: HashMap::new(),
            compared: HashSet::new(),
            proved: HashSet::new(),
            been: HashSet::new(),
            entered: HashSet::new(),
            kept: HashMap::new(),
            unsure: HashMap::new(),
            claims: HashMap::new(),
            stepping: None,
            next_call: 1,
            findings: Findings::default(),
            coverage: Coverage::default(),
            begin: Instant::now(),
        }
    }

    /// Runs the program to its end. Returns the findings, the amount of examined code, and the exit status of the program.
    pub fn run(mut self) -> io::Result<(Findings, Coverage, Option<std::process::ExitStatus>)> {
        let pid = self.tracer.pid();
        self.homes.insert(pid, pid);
        self.processes.insert(pid, Process::default());
        self.tracer.watch_syscalls(WATCHED);
        self.tracer.resume(pid)?;
        let mut looked = Instant::now();
        let is_over = |walk: &Walk| walk.options.seconds.is_some_and(|most| walk.begin.elapsed() >= most);
        while !is_over(&self) {
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.look(true);
                let entered = self.entered.len() as u64;
                (self.progress)(entered, self.processes.values().map(|it| it.book.pieces.len() as u64).sum());
            }
            // A step ends at once, except if the instruction is a system call, which is rare in compiled code.
            let steps = self.stepping.is_some_and(|tid| !self.tracer.is_stopped(tid));
            let event = if steps { Some(self.tracer.wait()?) } else { self.tracer.wait_for(LOOK)? };
            self.stepping = None;
            match event {
                Some(Event::Done) => break,
                Some(event) => self.event(event)?,
                None => {}
            }
            // This program does not wait for daemons that the examined program has left.
            if self.tracer.status().is_some() {
                break;
            }
        }
        let status = self.tracer.let_go()?;
        self.look(false);
        self.judge();
        Ok((self.findings, self.coverage, status))
    }

    /// Reads new records of all processes.
    fn look(&mut self, sets_breakpoints: bool) {
        for (&pid, process) in &mut self.processes {
            let calls = if sets_breakpoints { self.options.calls } else { 0 };
            process.follow(&mut self.tracer, pid, false, &self.options.functions, calls);
        }
    }

    fn home(&self, tid: Tid) -> Tid {
        let pid = self.tracer.pid_of(tid).unwrap_or(tid);
        self.homes.get(&pid).copied().unwrap_or(pid)
    }

    fn place(&mut self, tid: Tid, addr: u64) -> Place {
        let home = self.home(tid);
        self.processes.get_mut(&home).map_or(Place::Native, |process| process.place(&self.tracer, home, addr))
    }

    fn breakpoint(&mut self, tid: Tid, addr: u64) -> io::Result<()> {
        let home = self.home(tid);
        let registers = self.tracer.registers(tid)?;
        let thread = self.threads.entry(tid).or_default();
        if thread.mode == Mode::Through && thread.points.contains(&(addr, registers.rsp)) {
            self.forget_through(tid);
            let thread = self.threads.entry(tid).or_default();
            let last = thread.shadow.frames().last().copied();
            thread.shadow.returned(&mut self.tracer, tid)?;
            let len = thread.shadow.frames().len();
            let returned = last
                .zip(thread.calls.last())
                .filter(|(frame, _)| frame.cfa == registers.rsp && frame.return_address == addr);
            if let Some((frame, &call)) = returned.filter(|_| len + 1 == thread.calls.len()) {
                self.returned(call.id, &frame, tid)?;
            }
            let thread = self.threads.entry(tid).or_default();
            thread.truncate(len);
            thread.mode = Mode::Steps;
            return self.look_and_go(tid);
        }
        let Some(process) = self.processes.get_mut(&home) else { return self.go(tid) };
        let Some(index) = process.entry(addr) else {
            // Either the library reports code to debuggers here, or the breakpoint is meant for another thread.
            if process.tellers.contains(&addr) {
                process.follow(&mut self.tracer, home, false, &self.options.functions, self.options.calls);
            }
            return self.go(tid);
        };
        let piece = &mut process.book.pieces[index];
        piece.calls += 1;
        if piece.calls >= piece.most(self.options.calls) {
            process.leave_entry(&mut self.tracer, home, addr);
        }
        self.entered.insert((home, index));
        self.begin(tid, addr)
    }

    /// Removes the calls of a thread.
    fn clear(&mut self, tid: Tid) {
        let thread = self.threads.entry(tid).or_default();
        thread.shadow.clear();
        thread.truncate(0);
    }

    /// Removes the breakpoints to which a thread runs.
    fn forget_through(&mut self, tid: Tid) {
        let home = self.home(tid);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if thread.mode == Mode::Through {
            thread.mode = Mode::Free;
        }
        for (addr, _) in std::mem::take(&mut thread.points) {
            if let Some(process) = self.processes.get_mut(&home) {
                process.release(&mut self.tracer, home, addr);
            }
        }
    }

    fn abandon(&mut self, tid: Tid) {
        self.forget_through(tid);
        self.threads.remove(&tid);
    }

    /// Ends the steps of a thread, and lets it run.
    fn free(&mut self, tid: Tid) -> io::Result<()> {
        self.forget_through(tid);
        self.clear(tid);
        self.threads.entry(tid).or_default().mode = Mode::Free;
        self.tracer.resume(tid)
    }

    /// Runs to the interrupted instruction, because signal handlers are not examined.
    fn handler(&mut self, tid: Tid) -> io::Result<()> {
        let Some(thread) = self.threads.get(&tid) else { return self.tracer.resume(tid) };
        let (rip, rsp) = (thread.rip, thread.rsp);
        self.through(tid, &[(rip, rsp)])
    }

    /// Lets a thread run to the first of the points at which a breakpoint is possible.
    fn through(&mut self, tid: Tid, points: &[Point]) -> io::Result<()> {
        let home = self.home(tid);
        self.forget_through(tid);
        let Some(process) = self.processes.get_mut(&home) else { return self.free(tid) };
        let mut able = Vec::new();
        for &point in points {
            if process.want(&mut self.tracer, home, point.0, false).is_ok() {
                able.push(point);
            }
        }
        if able.is_empty() {
            return self.free(tid);
        }
        let thread = self.threads.entry(tid).or_default();
        (thread.mode, thread.points) = (Mode::Through, able);
        self.tracer.resume(tid)
    }

    /// Lets a thread run to an address that it has not reached before, or to the end of a call.
    fn run_on(&mut self, tid: Tid) -> io::Result<()> {
        let home = self.home(tid);
        let thread = self.threads.entry(tid).or_default();
        thread.ran_on += 1;
        if thread.ran_on > ON_MAX || thread.calls.is_empty() {
            return self.free(tid);
        }
        thread.dull = 0;
        let frames = thread.shadow.frames().iter().filter(|frame| frame.kind == FrameKind::Call);
        let mut points: Vec<Point> = frames.map(|frame| (frame.return_address, frame.cfa)).collect();
        let is_new = |addr: u64| !self.open_of_one.contains_key(&(home, addr)) && !self.been.contains(&(home, addr));
        points.extend(thread.sides.iter().map(|&(_, point)| point).filter(|point| is_new(point.0)));
        points.sort_unstable();
        points.dedup();
        self.through(tid, &points)
    }

    fn stepped(&mut self, tid: Tid) -> io::Result<()> {
        self.coverage.steps += 1;
        let branch = self.tracer.executed(tid).filter(|it| it.flow_control() == FlowControl::ConditionalBranch);
        let branch = branch.map(|it| (it.near_branch_target(), it.next_ip()));
        let thread = self.threads.entry(tid).or_default();
        let before = thread.shadow.frames().last().copied();
        let change = thread.shadow.stepped(&mut self.tracer, tid)?;
        let registers = self.tracer.registers(tid)?;
        let thread = self.threads.entry(tid).or_default();
        let len = thread.shadow.frames().len();
        if let Some((target, next)) = branch {
            let other = if registers.rip == target { next } else { target };
            let side = (len, (other, registers.rsp));
            if !thread.sides.contains(&side) {
                thread.sides.push(side);
            }
        }
        match change {
            Change::Called => {
                thread.calls.push(Call { id: self.next_call, is_apart: false });
                self.next_call += 1;
            }
            Change::Returned => {
                let call = thread.calls.last().copied();
                thread.truncate(len);
                if let (Some(frame), Some(call)) = (before, call) {
                    self.returned(call.id, &frame, tid)?;
                    // The thread has returned into an unknown call, or out of the outermost stepped call.
                    if call.is_apart && len > 0 {
                        return self.run_on(tid);
                    }
                    if len == 0 {
                        return self.free(tid);
                    }
                }
            }
            Change::Left => thread.truncate(len),
            Change::Switched => {
                let call = Call { id: self.next_call, is_apart: false };
                self.next_call += 1;
                thread.truncate(0);
                thread.calls.resize(len, call);
            }
            Change::None => {}
        }
        self.look_and_go(tid)
    }

    /// Compares the next instruction of a thread, and decides how to execute it.
    fn look_and_go(&mut self, tid: Tid) -> io::Result<()> {
        let registers = self.tracer.registers(tid)?;
        let (rip, rsp) = (registers.rip, registers.rsp);
        let place = self.place(tid, rip);
        let thread = self.threads.entry(tid).or_default();
        (thread.rip, thread.rsp) = (rip, rsp);
        if thread.dull > DULL {
            return self.run_on(tid);
        }
        thread.dull += 1;
        match place {
            Place::Native => {
                // The thread runs until it returns into the innermost compiled code.
                let frames: Vec<Frame> = thread.shadow.frames().to_vec();
                for frame in frames.iter().rev().filter(|frame| frame.kind == FrameKind::Call) {
                    if self.place(tid, frame.return_address) != Place::Native {
                        return self.through(tid, &[(frame.return_address, frame.cfa)]);
                    }
                }
                // Only its return proves that the outermost call was a real call.
                let root = frames.first().zip(self.threads.entry(tid).or_default().calls.first());
                match root.filter(|(_, call)| self.unsure.contains_key(&call.id)) {
                    Some((frame, _)) => self.through(tid, &[(frame.return_address, frame.cfa)]),
                    None => self.free(tid),
                }
            }
            Place::Piece(_) | Place::Unknown => {
                self.observe(tid, place)?;
                self.threads.entry(tid).or_default().came_from = rip;
                let is_call = self.tracer.word(self.home(tid), rip).is_ok_and(|word| word as u16 == SYSCALL);
                self.stepping = Some(tid).filter(|_| !is_call);
                self.tracer.step(tid)
            }
        }
    }
}
