//! Steps the calls of registered functions, and runs through what they call in programs and libraries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use iced_x86::{FlowControl, Mnemonic};
use jitsym_step::{Change, Event, Frame, Kind as FrameKind, Shadow, Tid, Tracer, KEPT, RSP};

use super::code::Piece;
use super::finding::{Coverage, Finding, Findings, Kind};
use super::process::{Place, Process};
use super::truth::{instruction, kept, numbered, Difference, Seen};
use super::Options;
use crate::check::frames::Where;

/// System calls after which there may be more to read, or something new is mapped.
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
/// Between looks at files that are written without system calls.
const LOOK: Duration = Duration::from_millis(20);
/// After so many steps without anything new a thread runs on to where it has not been.
const DULL: u64 = 400;
/// Not more often than this in one call.
const ON_MAX: u32 = 200;
/// Bytes of a stack that are kept: below the stack pointer, and at most.
const BELOW: u64 = 128;
const STACK_MAX: u64 = 16 << 10;
/// Instructions of which it is not known yet whether they are right: of one place, and of all.
const OPEN_OF_ONE: usize = 4;
const OPEN_MAX: usize = 50_000;
/// The instruction of a system call.
const SYSCALL: u16 = 0x050f;
/// What behind a piece of code is executed is taken for its end.
const BEHIND: u64 = 64;

/// What a thread is made to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// It runs.
    Free,
    /// It is stepped.
    Steps,
    /// It runs to the next of `Thread::points`.
    Through,
}

/// An address, and the stack pointer that a thread has there if it is in the call that is meant.
type Point = (u64, u64);

/// A call.
#[derive(Clone, Copy)]
struct Call {
    id: u64,
    /// Between it and the call below there are others, which are not known.
    is_apart: bool,
}

struct Thread {
    mode: Mode,
    shadow: Shadow,
    /// One for each frame of the shadow.
    calls: Vec<Call>,
    /// Where it stops when it runs.
    points: Vec<Point>,
    /// Sides of branches that were not taken, and in which frame.
    sides: Vec<(usize, Point)>,
    /// How often it has run on.
    ran_on: u32,
    /// Where it was before the last step.
    rip: u64,
    rsp: u64,
    /// Steps without anything new.
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
    /// Forgets all but the outermost calls.
    fn truncate(&mut self, len: usize) {
        self.calls.truncate(len);
        self.sides.retain(|&(depth, _)| depth <= len);
    }
}

/// A run.
pub struct Walk<'a> {
    tracer: Tracer,
    options: &'a Options,
    progress: &'a mut dyn FnMut(u64, u64),
    processes: HashMap<Tid, Process>,
    /// Whose memory a process has.
    homes: HashMap<Tid, Tid>,
    threads: HashMap<Tid, Thread>,
    /// What seems to be wrong, or is not known.
    open: Vec<(Tid, Seen)>,
    open_of_one: HashMap<(Tid, u64), usize>,
    /// Instructions whose bytes were compared, by process, piece and address; and those whose tables were.
    compared: HashSet<(Tid, usize, u64)>,
    proved: HashSet<(Tid, usize, u64)>,
    /// Addresses that were executed.
    been: HashSet<(Tid, u64)>,
    entered: HashSet<(Tid, usize)>,
    /// Registers that a call has left as they were, once it has returned.
    kept: HashMap<u64, BTreeSet<u16>>,
    /// Calls that may be none, until they return, with the instructions that are right if they are.
    unsure: HashMap<u64, Vec<(Tid, usize, u64)>>,
    /// Of those of which only the tables tell: what was seen at their begin.
    claims: HashMap<u64, Option<(Tid, Seen)>>,
    /// The thread that executes an instruction now, which is no system call.
    stepping: Option<Tid>,
    next_call: u64,
    findings: Findings,
    coverage: Coverage,
    begin: Instant,
}

fn now() -> u64 {
    // SAFETY: a struct of integers.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: the struct is written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
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

    /// Runs the program to its end. Returns what was found, and how it has ended.
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
            // A step ends at once, and a call of the system in compiled code is rare.
            let steps = self.stepping.is_some_and(|tid| !self.tracer.is_stopped(tid));
            let event = if steps { Some(self.tracer.wait()?) } else { self.tracer.wait_for(LOOK)? };
            self.stepping = None;
            match event {
                Some(Event::Done) => break,
                Some(event) => self.event(event)?,
                None => {}
            }
            // A daemon is not waited for.
            if self.tracer.status().is_some() {
                break;
            }
        }
        let status = self.tracer.let_go()?;
        self.look(false);
        self.judge();
        Ok((self.findings, self.coverage, status))
    }

    /// Reads what all processes have written.
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

    fn event(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Stepped { tid } => self.stepped(tid),
            Event::Breakpoint { tid, addr } => self.breakpoint(tid, addr),
            Event::Handler { tid, .. } => self.handler(tid),
            Event::Signal { tid, .. } => self.go(tid),
            Event::Syscall { tid, number } => {
                self.system_call(tid, number)?;
                self.go(tid)
            }
            Event::NewThread { tid, by } => {
                self.tracer.resume(tid)?;
                self.go(by)
            }
            Event::Forked { pid, by, shares_memory } => {
                let home = self.home(by);
                self.homes.insert(pid, if shares_memory { home } else { pid });
                if !shares_memory {
                    let mut process = Process::default();
                    process.sources.forked_at = Some(now());
                    process.follow(&mut self.tracer, pid, true, &self.options.functions, self.options.calls);
                    self.processes.insert(pid, process);
                }
                self.tracer.resume(pid)?;
                self.go(by)
            }
            Event::Exec { tid, .. } => {
                self.threads.remove(&tid);
                // What the program before has run stays known.
                if let Some(process) = self.processes.remove(&tid) {
                    self.retire(tid, process);
                }
                self.homes.insert(tid, tid);
                self.processes.insert(tid, Process::default());
                self.tracer.resume(tid)
            }
            Event::ThreadExited { tid, .. } => {
                self.abandon(tid);
                Ok(())
            }
            Event::Exited { pid, .. } => {
                self.abandon(pid);
                if let Some(mut process) = self.processes.remove(&pid) {
                    process.follow(&mut self.tracer, pid, false, &self.options.functions, 0);
                    self.retire(pid, process);
                }
                Ok(())
            }
            Event::Interrupted { tid } => self.go(tid),
            Event::Done => Ok(()),
        }
    }

    /// A process has ended. Its code is judged now.
    fn retire(&mut self, pid: Tid, process: Process) {
        self.processes.insert(pid, process);
        self.judge_process(pid);
        self.processes.remove(&pid);
    }

    /// Has a thread go on as before.
    fn go(&mut self, tid: Tid) -> io::Result<()> {
        match self.threads.get(&tid).map(|thread| thread.mode) {
            Some(Mode::Steps) => self.tracer.step(tid),
            _ => self.tracer.resume(tid),
        }
    }

    fn system_call(&mut self, tid: Tid, number: i64) -> io::Result<()> {
        let home = self.home(tid);
        let registers = self.tracer.registers(tid)?;
        let is_mapping = number == libc::SYS_mmap;
        // A file, or memory for code.
        let is_remapped = match is_mapping {
            true => registers.rdx as i32 & libc::PROT_EXEC != 0 && registers.r8 as i32 != -1,
            false => !matches!(number, libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev),
        };
        if is_mapping && !is_remapped {
            return Ok(());
        }
        if let Some(process) = self.processes.get_mut(&home) {
            process.follow(&mut self.tracer, home, is_remapped, &self.options.functions, self.options.calls);
        }
        Ok(())
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
            // Where debuggers are told, or a breakpoint that another thread waits at.
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

    /// A thread stands at the entry of code, and is stepped from here on.
    fn begin(&mut self, tid: Tid, addr: u64) -> io::Result<()> {
        let id = self.next_call;
        self.next_call += 1;
        let how = self.how_entered(tid, addr)?;
        if self.threads.entry(tid).or_default().mode == Mode::Free {
            self.clear(tid);
        }
        if how != Some(true) {
            let claim = self.claim(tid, addr)?.filter(|claim| how.is_none() || claim.cfa != self.rsp(tid) + 8);
            if let Some(claim) = claim {
                return self.jumped(tid, claim, id);
            }
        }
        if how.is_none() && self.threads.entry(tid).or_default().mode != Mode::Free {
            // By a jump, from where nothing is known.
            return self.go(tid);
        }
        self.forget_through(tid);
        let thread = self.threads.entry(tid).or_default();
        if thread.calls.is_empty() {
            thread.ran_on = 0;
        }
        thread.dull = 0;
        if how.is_some() {
            thread.shadow.entered(&mut self.tracer, tid)?;
        }
        if how == Some(false) {
            self.unsure.insert(id, Vec::new());
        }
        let len = thread.shadow.frames().len();
        // Of a call that was there already nothing is known any more.
        thread.truncate(len.saturating_sub(1));
        thread.calls.resize(len, Call { id, is_apart: true });
        thread.mode = Mode::Steps;
        self.look_and_go(tid)
    }

    fn rsp(&mut self, tid: Tid) -> u64 {
        self.tracer.registers(tid).map_or(0, |registers| registers.rsp)
    }

    /// Code was entered by a jump from code that was not stepped. What its tables say of the call that it belongs to is right if
    /// the thread returns to there later.
    fn jumped(&mut self, tid: Tid, claim: Frame, id: u64) -> io::Result<()> {
        let thread = self.threads.entry(tid).or_default();
        let is_same = |frame: &Frame| (frame.cfa, frame.return_address) == (claim.cfa, claim.return_address);
        let is_known = thread.shadow.frames().last().is_some_and(is_same);
        if !is_known && !thread.calls.is_empty() {
            return self.go(tid);
        }
        self.forget_through(tid);
        let thread = self.threads.entry(tid).or_default();
        if !is_known {
            thread.shadow.push(&mut self.tracer, tid, claim)?;
            thread.calls.push(Call { id, is_apart: true });
            thread.ran_on = 0;
            self.unsure.insert(id, Vec::new());
            self.claims.insert(id, None);
        } else {
            thread.shadow.returned(&mut self.tracer, tid)?;
        }
        (thread.mode, thread.dull) = (Mode::Steps, 0);
        self.look_and_go(tid)
    }

    /// The call that code belongs to by what its tables say of its first instruction, if there may be one.
    fn claim(&mut self, tid: Tid, addr: u64) -> io::Result<Option<Frame>> {
        let home = self.home(tid);
        let registers = numbered(&self.tracer.registers(tid)?);
        let process = self.processes.get(&home);
        let rows = process.and_then(|it| it.book.pieces[it.book.at(addr)?].rows.as_ref());
        let Some(row) = rows.and_then(|rows| rows.at(0)) else { return Ok(None) };
        let Some((from, by)) = row.cfa else { return Ok(None) };
        let Some(base) = registers.get(usize::from(from)) else { return Ok(None) };
        let cfa = base.wrapping_add_signed(by);
        let value = |number: u16| match row.rule(number) {
            Where::At(at) => self.tracer.word(home, cfa.wrapping_add_signed(at)).ok(),
            Where::Same => Some(registers[usize::from(number)]),
            Where::In(_) | Where::Elsewhere => None,
        };
        let Some(return_address) = value(16) else { return Ok(None) };
        let mut kept = [0; 16];
        kept[usize::from(RSP)] = cfa;
        for number in KEPT {
            let Some(value) = value(number) else { return Ok(None) };
            kept[usize::from(number)] = value;
        }
        let frame = Frame { kind: FrameKind::Call, cfa, return_address, entry: addr, registers: kept };
        Ok(Some(frame).filter(|_| !self.calls_before(home, return_address).is_empty()))
    }

    /// The call instructions that may be before a return address.
    fn calls_before(&self, home: Tid, back: u64) -> Vec<iced_x86::Instruction> {
        let mut before = [0; 7];
        let at = back.wrapping_sub(before.len() as u64);
        if self.tracer.read(home, at, &mut before).unwrap_or(0) != before.len() {
            return Vec::new();
        }
        let decoded = (2..=before.len()).map(|len| {
            let bytes = &before[before.len() - len..];
            (iced_x86::Decoder::with_ip(64, bytes, back - len as u64, 0).decode(), len)
        });
        let calls = decoded.filter(|(call, len)| call.len() == *len && call.mnemonic() == Mnemonic::Call);
        calls.map(|(call, _)| call).filter(|call| !call.is_invalid()).collect()
    }

    /// Whether code was entered by a call: surely, perhaps, or (`None`) not.
    fn how_entered(&mut self, tid: Tid, addr: u64) -> io::Result<Option<bool>> {
        let registers = self.tracer.registers(tid)?;
        let home = self.home(tid);
        let Ok(back) = self.tracer.word(home, registers.rsp) else { return Ok(None) };
        let calls = self.calls_before(home, back);
        for call in &calls {
            if call.is_call_near() && call.near_branch_target() == addr {
                return Ok(Some(true));
            }
            if call.is_call_near_indirect() {
                let register = call.op0_register().full_register();
                let all = numbered(&registers);
                let target = match call.op0_kind() {
                    iced_x86::OpKind::Register => super::truth::number(register).map(|number| all[number]),
                    _ if call.is_ip_rel_memory_operand() => self.tracer.word(home, call.ip_rel_memory_address()).ok(),
                    _ => None,
                };
                if target == Some(addr) {
                    return Ok(Some(true));
                }
            }
        }
        Ok((!calls.is_empty()).then_some(false))
    }

    /// Forgets what a thread has done.
    fn clear(&mut self, tid: Tid) {
        let thread = self.threads.entry(tid).or_default();
        thread.shadow.clear();
        thread.truncate(0);
    }

    /// Removes the breakpoints that a thread runs to.
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

    /// No more steps of this call.
    fn free(&mut self, tid: Tid) -> io::Result<()> {
        self.forget_through(tid);
        self.clear(tid);
        self.threads.entry(tid).or_default().mode = Mode::Free;
        self.tracer.resume(tid)
    }

    /// A signal's handler is no code of interest. What was interrupted goes on behind it.
    fn handler(&mut self, tid: Tid) -> io::Result<()> {
        let Some(thread) = self.threads.get(&tid) else { return self.tracer.resume(tid) };
        let (rip, rsp) = (thread.rip, thread.rsp);
        self.through(tid, &[(rip, rsp)])
    }

    /// Lets a thread run to the first of some places, as far as breakpoints can be there.
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

    /// Lets a thread run to where it has not been, or to the end of a call.
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

    /// A call has returned, so that it was one.
    fn returned(&mut self, id: u64, frame: &Frame, tid: Tid) -> io::Result<()> {
        let registers = self.tracer.registers(tid)?;
        let now = numbered(&registers);
        let kept = kept(frame, &now);
        let right = self.unsure.remove(&id).unwrap_or_default();
        match self.claims.remove(&id) {
            // It has returned to where it was said to, with other registers.
            Some(seen) if kept.len() < KEPT.len() => {
                let (fresh, mut truth) = (self.next_call, *frame);
                self.next_call += 1;
                KEPT.into_iter().for_each(|number| truth.registers[usize::from(number)] = now[usize::from(number)]);
                let seen = seen.map(|(home, seen)| (home, Seen { frame: Some(truth), call: fresh, ..seen }));
                self.open.extend(seen);
                self.kept.insert(fresh, kept.clone());
            }
            _ => self.proved.extend(right),
        }
        self.kept.insert(id, kept);
        Ok(())
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
                    // To a call that is not known, or to the end of what is to be stepped.
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

    /// Compares what a thread executes next, and decides how it goes on.
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
                // On with the innermost compiled code that waits for a return.
                let frames: Vec<Frame> = thread.shadow.frames().to_vec();
                for frame in frames.iter().rev().filter(|frame| frame.kind == FrameKind::Call) {
                    if self.place(tid, frame.return_address) != Place::Native {
                        return self.through(tid, &[(frame.return_address, frame.cfa)]);
                    }
                }
                // Whether the outermost call was one shows at its end.
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

    /// Compares an instruction, or keeps what is known of it.
    fn observe(&mut self, tid: Tid, place: Place) -> io::Result<()> {
        let home = self.home(tid);
        let registers = numbered(&self.tracer.registers(tid)?);
        let (rip, rsp) = (registers[16], registers[7]);
        let Some(thread) = self.threads.get(&tid) else { return Ok(()) };
        let frame = thread.shadow.frames().last().copied().filter(|frame| frame.kind == FrameKind::Call);
        let from = rsp.saturating_sub(BELOW);
        let until = frame.map_or(rsp, |frame| frame.cfa.max(rsp)).min(rsp.saturating_add(STACK_MAX));
        let mut stack = vec![0; until.saturating_sub(from) as usize];
        let len = self.tracer.read(home, from, &mut stack).unwrap_or(0);
        stack.truncate(len);
        let mut code = vec![0; 15];
        let len = self.tracer.read(home, rip, &mut code).unwrap_or(0);
        code.truncate(len);
        let call = thread.calls.last().map_or(0, |call| call.id);
        let came_from = thread.came_from;
        let seen = Seen { time: now(), rip, code, registers, frame, from, stack, call, came_from };
        if let Some(first @ None) = self.claims.get_mut(&call) {
            *first = Some((home, seen.clone()));
        }
        let is_right = match (place, self.processes.get_mut(&home)) {
            (Place::Piece(index), Some(process)) => {
                let piece = &process.book.pieces[index];
                if !piece.wanted {
                    return Ok(());
                }
                if self.been.insert((home, rip)) {
                    self.threads.entry(tid).or_default().dull = 0;
                }
                let (mut checked, has_rows) = (false, piece.rows.is_some());
                let is_right = seen.compare(piece, &mut checked).is_empty() && piece.shift == 0;
                let is_swallowed = process.book.swallowed.iter().any(|&(_, small)| small == index);
                let is_right = is_right && !is_swallowed && piece.time <= seen.time;
                if is_right && checked {
                    self.coverage.comparisons += 1;
                    let place = (home, index, rip);
                    self.compared.insert(place);
                    if seen.frame.is_some() && has_rows && !self.proved.contains(&place) {
                        match self.unsure.get_mut(&call) {
                            Some(right) => right.push(place),
                            None => drop(self.proved.insert(place)),
                        }
                    }
                }
                is_right
            }
            _ => false,
        };
        if !is_right {
            let count = self.open_of_one.entry((home, rip)).or_default();
            if *count < OPEN_OF_ONE && self.open.len() < OPEN_MAX {
                *count += 1;
                self.threads.entry(tid).or_default().dull = 0;
                self.open.push((home, seen));
            }
        }
        Ok(())
    }

    /// Everything is known now: says what was wrong.
    fn judge(&mut self) {
        let all: Vec<Tid> = self.processes.keys().copied().collect();
        all.into_iter().for_each(|pid| self.judge_process(pid));
        self.findings.sort();
        self.coverage.instructions = self.compared.len();
        self.coverage.proved = self.proved.len();
        self.coverage.jumps = self.unsure.len() as u64;
    }

    fn judge_process(&mut self, pid: Tid) {
        let Some(process) = self.processes.get(&pid) else { return };
        let (mine, others) = std::mem::take(&mut self.open).into_iter().partition(|(of, _)| *of == pid);
        self.open = others;
        let mine: Vec<(Tid, Seen)> = mine;
        self.coverage.processes += usize::from(!process.sources.is_empty());
        let wanted = || process.book.pieces.iter().filter(|piece| piece.wanted);
        self.coverage.registered += wanted().count();
        self.coverage.with_tables += wanted().filter(|piece| piece.rows.is_some()).count();
        let (unsure, kept) = (&self.unsure, &self.kept);
        for (_, mut seen) in mine {
            // What was taken for a call may have been none.
            seen.frame = seen.frame.filter(|_| !unsure.contains_key(&seen.call));
            let Some(index) = process.book.at_time(seen.rip, seen.time) else {
                let found = unregistered(process, &seen, self.findings.is_empty());
                found.into_iter().for_each(|finding| self.findings.add(finding));
                continue;
            };
            let piece = &process.book.pieces[index];
            if !piece.wanted {
                continue;
            }
            self.entered.insert((pid, index));
            let mut checked = false;
            let mut differences = seen.compare(piece, &mut checked);
            if piece.time > seen.time {
                let is_it = !differences.iter().any(|it| it.finding.kind == Kind::Bytes);
                let found = if is_it { Some(late(piece, &seen)) } else { unregistered(process, &seen, true) };
                found.into_iter().for_each(|finding| self.findings.add(finding));
                if !is_it {
                    continue;
                }
            }
            if piece.shift != 0 {
                self.findings.add(elsewhere(piece, &seen));
            }
            if let Some(&(large, _)) = process.book.swallowed.iter().find(|&&(_, small)| small == index) {
                self.findings.add(too_large(&process.book.pieces[large], piece, &seen));
            }
            let is_kept = |register: u16| kept.get(&seen.call).is_some_and(|all| all.contains(&register));
            differences.retain(|it| it.if_kept.is_none_or(is_kept));
            let place = (pid, index, seen.rip);
            if checked {
                self.coverage.comparisons += 1;
                self.compared.insert(place);
            }
            if differences.is_empty() && seen.frame.is_some() && piece.rows.is_some() {
                self.proved.insert(place);
            }
            for Difference { finding, .. } in differences {
                self.findings.add(finding);
            }
        }
        self.coverage.entered = self.entered.len();
    }
}

/// Code that no file tells of. `None` if what led there is told already.
fn unregistered(process: &Process, seen: &Seen, is_first: bool) -> Option<Finding> {
    let piece_at = |addr: u64| process.book.at_time(addr, seen.time).map(|index| &process.book.pieces[index]);
    let entry = seen.frame.map(|frame| frame.entry);
    let before = piece_at(seen.came_from);
    // A function that goes on behind its end, or code behind the end of one.
    let is_behind = |piece: &&Piece| (piece.range().end..piece.range().end + BEHIND).contains(&seen.rip);
    let own = entry.map_or(before, piece_at);
    if let Some(piece) = own.filter(is_behind) {
        return Some(Finding {
            offset: piece.size,
            said: format!("the size is {:#x}", piece.size),
            is: "the function goes on behind that".into(),
            change: "register all of the function".into(),
            ..at(Kind::Size, piece, seen)
        });
    }
    let unknown = entry.filter(|&entry| piece_at(entry).is_none());
    if unknown.is_none() && before.is_none() && !is_first {
        return None;
    }
    let after = before.map(|piece| format!(" after {}+{:#x}", piece.name, seen.came_from - piece.range().start));
    Some(Finding {
        kind: Kind::Unregistered,
        // One for each function that nobody knows.
        function: format!("[{:#x}]", unknown.unwrap_or(seen.rip)),
        offset: 0,
        addr: seen.rip,
        instruction: instruction(&seen.code, seen.rip).0,
        said: "nothing: no file tells of this code".into(),
        is: format!("it is executed{}", after.unwrap_or_default()),
        change: "register it before it runs".into(),
        file: String::new(),
    })
}

fn at(kind: Kind, piece: &Piece, seen: &Seen) -> Finding {
    Finding {
        kind,
        function: piece.name.clone(),
        offset: 0,
        addr: seen.rip,
        instruction: instruction(&seen.code, seen.rip).0,
        said: String::new(),
        is: String::new(),
        change: String::new(),
        file: piece.file.clone(),
    }
}

fn late(piece: &Piece, seen: &Seen) -> Finding {
    let by = Duration::from_nanos(piece.time - seen.time);
    Finding {
        said: format!("it was registered at {} ns", piece.time),
        is: format!("it was executed {by:?} before that"),
        change: "register it before anything can call it".into(),
        ..at(Kind::Late, piece, seen)
    }
}

fn elsewhere(piece: &Piece, seen: &Seen) -> Finding {
    let start = piece.range().start;
    let way = if piece.shift > 0 { "higher" } else { "lower" };
    Finding {
        said: format!("it is at {:#x}", piece.addr),
        is: format!("these bytes run at {start:#x}"),
        change: format!("give the address at which it runs, {} bytes {way}", piece.shift.unsigned_abs()),
        ..at(Kind::Address, piece, seen)
    }
}

fn too_large(large: &Piece, small: &Piece, seen: &Seen) -> Finding {
    let room = small.range().start - large.range().start;
    Finding {
        said: format!("its size is {:#x}", large.size),
        is: format!("{} begins at +{room:#x}, and runs there", small.name),
        change: format!("give a size of {room:#x} at most"),
        ..at(Kind::Size, large, seen)
    }
}
