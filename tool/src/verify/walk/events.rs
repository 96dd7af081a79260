//! Handles events of threads and processes.

use std::io;

use jitsym_step::{Event, Tid};

use super::{Mode, Walk};
use crate::verify::process::Process;

impl Walk<'_> {
    pub(super) fn event(&mut self, event: Event) -> io::Result<()> {
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
                    process.sources.forked_at = Some(jitsym_step::now());
                    process.follow(&mut self.tracer, pid, true, &self.options.functions, self.options.calls);
                    self.processes.insert(pid, process);
                }
                self.tracer.resume(pid)?;
                self.go(by)
            }
            Event::Exec { tid, .. } => {
                self.threads.remove(&tid);
                // Results for the previous program are kept.
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

    /// Judges the code of a process that has ended.
    pub(super) fn retire(&mut self, pid: Tid, process: Process) {
        self.processes.insert(pid, process);
        self.judge_process(pid);
        self.processes.remove(&pid);
    }

    /// Continues a thread in its present mode.
    pub(super) fn go(&mut self, tid: Tid) -> io::Result<()> {
        match self.threads.get(&tid).map(|thread| thread.mode) {
            Some(Mode::Steps) => self.tracer.step(tid),
            _ => self.tracer.resume(tid),
        }
    }

    pub(super) fn system_call(&mut self, tid: Tid, number: i64) -> io::Result<()> {
        let home = self.home(tid);
        let registers = self.tracer.registers(tid)?;
        let is_mapping = number == libc::SYS_mmap;
        // Whether a file, or memory for code, was mapped.
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
}
