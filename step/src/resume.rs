//! How threads go on: with the signal that waits, over a breakpoint, with the right debug registers.

use std::io;

use iced_x86::Mnemonic;

use crate::displaced::{decode, Displaced};
use crate::space::{Breakpoint, HARDWARE};
use crate::tracer::{no_such, Mode, Over, State};
use crate::{ptrace, Registers, Tid, Tracer};

/// In the flags: the processor traps after each instruction; and it ignores debug registers for the next one.
pub const TRAP_FLAG: u64 = 1 << 8;
pub const RESUME_FLAG: u64 = 1 << 16;
/// The register that says which debug registers are in use.
const CONTROL: usize = 7;
/// An instruction has at most 15 bytes.
const LONGEST: usize = 15;

/// A thread may be killed at any time. That is told later.
fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result,
    }
}

impl Tracer {
    /// Has a stopped thread execute one instruction, or enter the handler of the signal that it gets.
    pub fn step(&mut self, tid: Tid) -> io::Result<()> {
        self.go(tid, Mode::Step)
    }

    /// Has a stopped thread run to the next breakpoint.
    pub fn resume(&mut self, tid: Tid) -> io::Result<()> {
        self.go(tid, Mode::Run)
    }

    pub(crate) fn go(&mut self, tid: Tid, mode: Mode) -> io::Result<()> {
        let thread = self.threads.get_mut(&tid).ok_or_else(|| no_such("thread"))?;
        if thread.state != State::Stopped {
            return Err(io::Error::other(format!("thread {tid} is not stopped")));
        }
        thread.mode = mode;
        if thread.group_stop && thread.signal == 0 {
            thread.state = State::Listening;
            return unless_gone(ptrace::listen(tid));
        }
        let at = thread.at;
        let is_at = at.is_some() && self.registers(tid).map(|registers| registers.rip).ok() == at;
        let breakpoint = at.filter(|_| is_at).map(|addr| Ok::<_, io::Error>((addr, self.breakpoint_of(tid, addr)?)));
        let breakpoint = breakpoint.transpose()?.and_then(|(addr, breakpoint)| Some((addr, breakpoint?)));
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(()) };
        if !is_at || matches!(breakpoint, Some((_, Breakpoint::Hardware))) {
            thread.at = None;
        }
        thread.instruction = None;
        let has_signal = thread.signal != 0;
        let stepping = mode == Mode::Step || matches!(breakpoint, Some((_, Breakpoint::Software(_))));
        if stepping {
            self.look_ahead(tid)?;
        }
        match breakpoint {
            // The handler would return to where the instruction is executed. So the handler comes first; without one the
            // thread meets the breakpoint again.
            Some((_, Breakpoint::Software(_))) if has_signal => {}
            Some((addr, Breakpoint::Software(_))) if !self.begin_over(tid, addr)? => {
                self.waiting.push_back(tid);
                return Ok(());
            }
            Some((_, Breakpoint::Software(_))) => {}
            Some((_, Breakpoint::Hardware)) => {
                let mut registers = self.registers(tid)?;
                registers.eflags |= RESUME_FLAG;
                self.set_registers(tid, &registers)?;
            }
            None => {}
        }
        unless_gone(self.start(tid, stepping))
    }

    fn breakpoint_of(&self, tid: Tid, addr: u64) -> io::Result<Option<Breakpoint>> {
        let pid = self.pid_of(tid).ok_or_else(|| no_such("thread"))?;
        Ok(self.space(pid)?.breakpoint(addr))
    }

    /// Decodes what a thread executes next.
    fn look_ahead(&mut self, tid: Tid) -> io::Result<()> {
        // It may have been killed.
        let Ok(registers) = self.registers(tid) else { return Ok(()) };
        let pid = self.pid_of(tid).ok_or_else(|| no_such("thread"))?;
        let mut bytes = [0; LONGEST];
        // There may be nothing, which the program will notice.
        let len = self.read(pid, registers.rip, &mut bytes).unwrap_or(0);
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.instruction = decode(&bytes[..len], registers.rip);
            thread.own_trap_flag = registers.eflags & TRAP_FLAG != 0;
        }
        Ok(())
    }

    /// Prepares the instruction below a breakpoint; `false` if another thread has to be over one first.
    fn begin_over(&mut self, tid: Tid, addr: u64) -> io::Result<bool> {
        let pid = self.pid_of(tid).ok_or_else(|| no_such("thread"))?;
        let mut bytes = [0; LONGEST];
        let len = self.read(pid, addr, &mut bytes)?;
        let instruction = self.threads.get(&tid).and_then(|thread| thread.instruction);
        let prepared = instruction.and_then(|instruction| Displaced::prepare(&instruction, &bytes[..len]));
        let space = self.space_mut(pid)?;
        if prepared.is_some() && !space.is_slot_free() {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.state = State::Waiting;
            }
            return Ok(false);
        }
        let prepared = prepared.and_then(|(displaced, code)| Some((displaced, space.take_slot(tid, &code)?)));
        let over = match prepared {
            Some((mut displaced, slot)) => {
                let mut registers = self.registers(tid)?;
                displaced.enter(slot, &mut registers);
                self.set_registers(tid, &registers)?;
                Over::Displaced(displaced)
            }
            None => {
                space.uncover(addr);
                Over::InPlace(addr)
            }
        };
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.over = Some(over);
        }
        Ok(true)
    }

    /// Has those go on that have waited for others to be over a breakpoint.
    pub(crate) fn go_waiting(&mut self) -> io::Result<()> {
        for tid in std::mem::take(&mut self.waiting) {
            let Some(thread) = self.threads.get_mut(&tid).filter(|thread| thread.state == State::Waiting) else {
                continue;
            };
            thread.state = State::Stopped;
            let mode = thread.mode;
            self.go(tid, mode)?;
        }
        Ok(())
    }

    /// What a thread that is gone has left to do.
    pub(crate) fn abandon_over(&mut self, tid: Tid) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let (pid, over) = (thread.pid, thread.over.take());
        match (over, self.space_mut(pid)) {
            (Some(Over::Displaced(_)), Ok(space)) => space.release_slot(tid),
            (Some(Over::InPlace(addr)), Ok(space)) => space.cover(addr),
            _ => {}
        }
    }

    /// What is left to do when it has stopped, wherever it is.
    pub(crate) fn end_over(&mut self, tid: Tid) -> io::Result<()> {
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(()) };
        let pid = thread.pid;
        match thread.over.take() {
            Some(Over::Displaced(displaced)) => {
                let mut registers = self.registers(tid)?;
                let pushed = displaced.leave(&mut registers);
                self.set_registers(tid, &registers)?;
                self.space_mut(pid)?.release_slot(tid);
                if let Some(word) = pushed {
                    self.write(pid, registers.rsp, &word.to_le_bytes())?;
                }
            }
            Some(Over::InPlace(addr)) => self.space(pid)?.cover(addr),
            None => {}
        }
        self.hide_trap_flag(tid)
    }

    /// Takes it out of what the instruction has stored.
    fn hide_trap_flag(&mut self, tid: Tid) -> io::Result<()> {
        let Some(thread) = self.threads.get(&tid) else { return Ok(()) };
        let Some(instruction) = thread.instruction.filter(|_| !thread.own_trap_flag) else { return Ok(()) };
        let pid = thread.pid;
        let stores = matches!(instruction.mnemonic(), Mnemonic::Pushf | Mnemonic::Pushfq | Mnemonic::Syscall);
        if !stores || self.registers(tid)?.rip != instruction.next_ip() {
            return Ok(());
        }
        match instruction.mnemonic() {
            Mnemonic::Pushf | Mnemonic::Pushfq => {
                let Registers { rsp, .. } = self.registers(tid)?;
                let mut flags = [0; 2];
                if self.read(pid, rsp, &mut flags)? == 2 {
                    flags[1] &= !((TRAP_FLAG >> 8) as u8);
                    self.write(pid, rsp, &flags)?;
                }
                Ok(())
            }
            Mnemonic::Syscall => self.hide_in_r11(tid),
            _ => Ok(()),
        }
    }

    /// Where `syscall` keeps the flags.
    pub(crate) fn hide_in_r11(&mut self, tid: Tid) -> io::Result<()> {
        let r11 = self.registers(tid)?.r11 & !TRAP_FLAG;
        if let Some(thread) = self.threads.get_mut(&tid) {
            if let Some(registers) = thread.registers.as_mut().filter(|registers| registers.r11 != r11) {
                registers.r11 = r11;
                // Not all of them, because the kernel may be about to restart the call.
                return ptrace::set_r11(tid, r11);
            }
        }
        Ok(())
    }

    fn start(&mut self, tid: Tid, stepping: bool) -> io::Result<()> {
        let pid = self.pid_of(tid).ok_or_else(|| no_such("thread"))?;
        let wanted = self.space(pid)?.hardware();
        let Some(thread) = self.threads.get_mut(&tid) else { return Ok(()) };
        thread.state = State::Running;
        if let Some(registers) = thread.registers.take().filter(|_| thread.changed) {
            ptrace::set_registers(tid, &registers)?;
        }
        thread.changed = false;
        if thread.debug != wanted {
            set_debug_registers(tid, &wanted)?;
            thread.debug = wanted;
        }
        thread.delivered = std::mem::take(&mut thread.signal);
        match stepping {
            true => ptrace::single_step(tid, thread.delivered),
            false if !self.watched.is_empty() => ptrace::to_syscall(tid, thread.delivered),
            false => ptrace::cont(tid, thread.delivered),
        }
    }

    /// Lets go of a stopped thread.
    pub(crate) fn detach(&mut self, tid: Tid) -> io::Result<()> {
        let Some(mut thread) = self.threads.remove(&tid) else { return Ok(()) };
        if !self.threads.values().any(|other| other.pid == thread.pid) {
            self.processes.remove(&thread.pid);
        }
        if let Some(registers) = thread.registers.take().filter(|_| thread.changed) {
            unless_gone(ptrace::set_registers(tid, &registers))?;
        }
        if thread.debug != [0; HARDWARE] {
            unless_gone(set_debug_registers(tid, &[0; HARDWARE]))?;
        }
        unless_gone(ptrace::detach(tid, thread.signal))
    }
}

/// Has a thread stop at these addresses; 0 is none.
fn set_debug_registers(tid: Tid, addresses: &[u64; HARDWARE]) -> io::Result<()> {
    ptrace::set_debug_register(tid, CONTROL, 0)?;
    let mut control = 0;
    for (number, &addr) in addresses.iter().enumerate() {
        ptrace::set_debug_register(tid, number, addr)?;
        // For execution, which all other bits are 0 for.
        control |= u64::from(addr != 0) << (2 * number);
    }
    ptrace::set_debug_register(tid, CONTROL, control)
}
