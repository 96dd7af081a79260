//! What the kernel reports of threads, and which events that makes.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::resume::{RESUME_FLAG, TRAP_FLAG};
use crate::space::{Breakpoint, Space};
use crate::tracer::{no_such, Mode, State, Thread};
use crate::{ptrace, Event, Tid, Tracer};

/// Between looks for a change, if there is something else to do.
const PAUSE: Duration = Duration::from_micros(500);

impl Tracer {
    /// Waits for the next event.
    pub fn wait(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.next(0)? {
                return Ok(event);
            }
        }
    }

    /// As `wait`, but no longer than this: then there is none.
    pub fn wait_for(&mut self, time: Duration) -> io::Result<Option<Event>> {
        let begin = Instant::now();
        loop {
            match self.next(libc::WNOHANG)? {
                None if begin.elapsed() >= time => return Ok(None),
                // A step takes less.
                None if begin.elapsed() < PAUSE => std::thread::yield_now(),
                None => std::thread::sleep(PAUSE),
                event => return Ok(event),
            }
        }
    }

    /// What comes of the next report, if anything.
    fn next(&mut self, flags: i32) -> io::Result<Option<Event>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        if self.threads.is_empty() && self.early.is_empty() {
            return Ok(Some(Event::Done));
        }
        match ptrace::wait(-1, libc::__WNOTHREAD | flags)? {
            Some((tid, status)) => match self.reported(tid, status) {
                // Killed between this report and what was asked about it. The end is reported next.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
                result => result,
            },
            None if flags & libc::WNOHANG == 0 => {
                // Nobody is left, whatever was expected.
                self.threads.clear();
                self.early.clear();
                Ok(None)
            }
            None => Ok(None),
        }
    }

    fn reported(&mut self, tid: Tid, status: i32) -> io::Result<Option<Event>> {
        if !libc::WIFSTOPPED(status) {
            let event = self.exited(tid, status);
            self.go_waiting()?;
            return Ok(event);
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            self.early.push(tid);
            return Ok(None);
        };
        thread.state = State::Stopped;
        thread.registers = None;
        let (signal, event) = (libc::WSTOPSIG(status), status >> ptrace::EVENT_SHIFT);
        if event == libc::PTRACE_EVENT_EXEC {
            return self.executes(tid).map(Some);
        }
        self.end_over(tid)?;
        self.go_waiting()?;
        match event {
            0 => self.signalled(tid, signal),
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                self.made(tid, event == libc::PTRACE_EVENT_VFORK)
            }
            libc::PTRACE_EVENT_STOP => self.stopped(tid, signal),
            _ => self.again(tid),
        }
    }

    /// Has a thread go on as before.
    fn again(&mut self, tid: Tid) -> io::Result<Option<Event>> {
        let mode = self.threads.get(&tid).map_or(Mode::Run, |thread| thread.mode);
        self.go(tid, mode)?;
        Ok(None)
    }

    fn exited(&mut self, tid: Tid, status: i32) -> Option<Event> {
        let pid = self.threads.get(&tid)?.pid;
        self.abandon_over(tid);
        self.threads.remove(&tid);
        if tid != pid {
            return Some(Event::ThreadExited { tid, pid });
        }
        self.forget_process(pid);
        // Whoever has made these may have ended before the kernel could tell.
        for early in std::mem::take(&mut self.early) {
            let adopted = self.adopt(early, pid, false);
            self.events.extend(adopted.ok().flatten());
        }
        let status = ExitStatus::from_raw(status);
        self.ended(pid, status);
        Some(Event::Exited { pid, status })
    }

    fn forget_process(&mut self, pid: Tid) {
        self.forget_threads(pid);
        if let Some(space) = self.processes.remove(&pid) {
            self.forget_space(space);
        }
    }

    fn forget_threads(&mut self, pid: Tid) {
        let of_process = self.threads.iter().filter(|(_, thread)| thread.pid == pid);
        let all: Vec<Tid> = of_process.map(|(&tid, _)| tid).collect();
        for tid in all {
            self.abandon_over(tid);
            self.threads.remove(&tid);
        }
    }

    fn forget_space(&mut self, space: usize) {
        if !self.processes.values().any(|&other| other == space) {
            self.spaces.remove(&space);
        }
    }

    /// A process executes another program.
    fn executes(&mut self, pid: Tid) -> io::Result<Event> {
        let former = ptrace::event_message(pid)?;
        let before = self.processes.get(&pid).copied();
        // Others may have the memory that this process leaves.
        self.forget_threads(pid);
        self.threads.insert(pid, Thread::new(pid));
        self.new_space(pid, Space::open(pid)?);
        before.into_iter().for_each(|space| self.forget_space(space));
        self.go_waiting()?;
        Ok(Event::Exec { tid: pid, former })
    }

    fn new_space(&mut self, pid: Tid, space: Space) {
        self.spaces.insert(self.next_space, space);
        self.processes.insert(pid, self.next_space);
        self.next_space += 1;
    }

    /// A thread has made another task, which the kernel stops before its first instruction.
    fn made(&mut self, by: Tid, is_vfork: bool) -> io::Result<Option<Event>> {
        let new = ptrace::event_message(by)?;
        if self.threads.contains_key(&new) {
            return self.again(by);
        }
        if let Some(at) = self.early.iter().position(|&tid| tid == new) {
            self.early.remove(at);
        } else {
            let report = ptrace::wait(new, 0)?;
            if !report.is_some_and(|(_, status)| libc::WIFSTOPPED(status)) {
                // It was killed before it began.
                return self.again(by);
            }
        }
        self.adopt(new, by, is_vfork)
    }

    fn adopt(&mut self, tid: Tid, by: Tid, is_vfork: bool) -> io::Result<Option<Event>> {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status"))?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let pid: Tid = group.ok_or_else(|| no_such("process"))?;
        let stepping = self.threads.get(&by).is_some_and(|maker| maker.instruction.is_some() && !maker.own_trap_flag);
        let event = if pid != tid {
            Event::NewThread { tid, by }
        } else {
            let parent = self.pid_of(by).unwrap_or(by);
            let shares_memory = ptrace::share_memory(parent, pid).unwrap_or(is_vfork);
            match self.processes.get(&parent).copied() {
                Some(space) if shares_memory => {
                    self.processes.insert(pid, space);
                }
                Some(space) => {
                    let copy = self.spaces.get(&space).ok_or_else(|| no_such("process"))?.forked(pid)?;
                    self.new_space(pid, copy);
                }
                None => self.new_space(pid, Space::open(pid)?),
            }
            Event::Forked { pid, by, shares_memory }
        };
        self.threads.insert(tid, Thread::new(pid));
        if stepping && self.registers(tid)?.r11 & TRAP_FLAG != 0 {
            // It begins with what the system call of its maker has stored.
            self.hide_in_r11(tid)?;
        }
        Ok(Some(event))
    }

    /// By `PTRACE_INTERRUPT`, or for job control.
    fn stopped(&mut self, tid: Tid, signal: i32) -> io::Result<Option<Event>> {
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(None) };
        thread.group_stop = signal != libc::SIGTRAP;
        if std::mem::take(&mut thread.interrupting) {
            return Ok(Some(Event::Interrupted { tid }));
        }
        self.again(tid)
    }

    /// A signal, or a trap that looks like one.
    fn signalled(&mut self, tid: Tid, signal: i32) -> io::Result<Option<Event>> {
        let registers = self.registers(tid)?;
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(None) };
        let (mode, pid, at) = (thread.mode, thread.pid, thread.at);
        let stepped = mode == Mode::Step;
        if at.is_some_and(|at| at != registers.rip && at + 1 != registers.rip) {
            thread.at = None;
        }
        if signal == ptrace::SYSCALL_STOP {
            let number = registers.orig_rax as i64;
            if self.watched.contains(&number) && ptrace::is_syscall_end(tid)? {
                return Ok(Some(Event::Syscall { tid, number }));
            }
            return self.again(tid);
        }
        if signal != libc::SIGTRAP {
            thread.signal = signal;
            // Then the instruction at the breakpoint has not been executed.
            if registers.eflags & RESUME_FLAG != 0 {
                thread.at = Some(registers.rip);
            }
            return Ok(Some(Event::Signal { tid, signo: signal }));
        }
        match ptrace::signal_info(tid)?.si_code {
            // The kernel says so where a step has entered a handler.
            libc::SIGTRAP => {
                thread.at = None;
                match stepped {
                    true => Ok(Some(Event::Handler { tid, signo: thread.delivered })),
                    false => self.again(tid),
                }
            }
            ptrace::TRAP_TRACE | ptrace::TRAP_BRKPT if thread.instruction.is_some() => {
                let instruction = thread.instruction.take_if(|_| !stepped);
                if stepped {
                    thread.at = Some(registers.rip);
                    return Ok(Some(Event::Stepped { tid }));
                }
                let is_repeated = instruction.is_some_and(|it| it.has_rep_prefix() || it.has_repne_prefix());
                if !is_repeated {
                    thread.at = None;
                }
                self.again(tid)
            }
            ptrace::TRAP_HWBKPT => {
                let is_ours = matches!(self.space(pid)?.breakpoint(registers.rip), Some(Breakpoint::Hardware));
                self.met(tid, registers.rip, is_ours)
            }
            ptrace::SI_KERNEL => {
                let addr = registers.rip.wrapping_sub(1);
                let space = self.space(pid)?;
                let is_ours = matches!(space.breakpoint(addr), Some(Breakpoint::Software(_)));
                if !is_ours && !space.was_breakpoint(addr) {
                    thread_signal(self, tid, signal);
                    return Ok(Some(Event::Signal { tid, signo: signal }));
                }
                let mut registers = registers;
                registers.rip = addr;
                self.set_registers(tid, &registers)?;
                self.met(tid, addr, is_ours)
            }
            _ => {
                thread_signal(self, tid, signal);
                Ok(Some(Event::Signal { tid, signo: signal }))
            }
        }
    }

    /// A thread stands at a breakpoint, or at one that was removed meanwhile.
    fn met(&mut self, tid: Tid, addr: u64, is_there: bool) -> io::Result<Option<Event>> {
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(None) };
        // It was told already, before a signal that had no handler.
        let is_known = thread.at == Some(addr);
        thread.instruction = None;
        thread.at = is_there.then_some(addr);
        match is_there && !is_known {
            true => Ok(Some(Event::Breakpoint { tid, addr })),
            false => self.again(tid),
        }
    }
}

fn thread_signal(tracer: &mut Tracer, tid: Tid, signal: i32) {
    if let Some(thread) = tracer.threads.get_mut(&tid) {
        thread.signal = signal;
    }
}
