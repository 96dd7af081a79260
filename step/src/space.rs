//! The memory of a process, and the breakpoints in it. Processes share one after `vfork`.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::Tid;

/// `int3`
const INT3: u8 = 0xcc;
/// Breakpoints that the processor has.
pub const HARDWARE: usize = 4;
/// Room for an instruction that is executed elsewhere.
const SLOT: usize = 16;
/// The key of the program's first instruction in the auxiliary vector.
const AT_ENTRY: u64 = 9;

/// How a breakpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breakpoint {
    /// An instruction in the place of this byte.
    Software(u8),
    /// One of the processor's.
    Hardware,
}

/// That a thread executes an instruction at the program's entry, and what else is there. Nobody comes to the entry twice.
#[derive(Clone, Copy)]
struct Slot {
    tid: Tid,
    before: [u8; SLOT],
}

/// Memory with breakpoints.
pub struct Space {
    memory: File,
    pub entry: Option<u64>,
    breakpoints: BTreeMap<u64, Breakpoint>,
    /// The addresses of the processor's among them; 0 is none.
    hardware: [u64; HARDWARE],
    /// Where breakpoints were: a thread may have executed one before it was removed.
    gone: HashSet<u64>,
    slot: Option<Slot>,
}

impl Space {
    /// That of a process.
    pub fn open(pid: Tid) -> io::Result<Space> {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        let vector = fs::read(format!("/proc/{pid}/auxv"))?;
        let mut words = vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
        let entry = std::iter::from_fn(|| Some((words.next()?, words.next()?)));
        let entry = entry.filter(|&(key, _)| key == AT_ENTRY).map(|(_, value)| value).next();
        let (breakpoints, gone) = Default::default();
        Ok(Space { memory, entry, breakpoints, hardware: [0; HARDWARE], gone, slot: None })
    }

    /// That of a forked child, which has a copy of this one with everything that was written there.
    pub fn forked(&self, pid: Tid) -> io::Result<Space> {
        let child = Space::open(pid)?;
        for (&addr, breakpoint) in &self.breakpoints {
            if let Breakpoint::Software(original) = *breakpoint {
                child.put_back(addr, original);
            }
        }
        Ok(child)
    }

    /// Reads memory as it is, up to its end.
    fn read_raw(&self, addr: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < out.len() {
            match self.memory.read_at(&mut out[len..], addr + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(_) if len > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(len)
    }

    /// As it is without breakpoints. Returns how much of it is there.
    pub fn read(&self, addr: u64, out: &mut [u8]) -> io::Result<usize> {
        let len = self.read_raw(addr, out)?;
        for (&at, breakpoint) in self.breakpoints.range(addr..addr.saturating_add(len as u64)) {
            let byte = &mut out[(at - addr) as usize];
            match breakpoint {
                // Else the program has replaced it.
                Breakpoint::Software(original) if *byte == INT3 => *byte = *original,
                _ => {}
            }
        }
        Ok(len)
    }

    /// Breakpoints stay.
    pub fn write(&mut self, addr: u64, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.to_vec();
        for (&at, breakpoint) in self.breakpoints.range_mut(addr..addr.saturating_add(bytes.len() as u64)) {
            if let Breakpoint::Software(original) = breakpoint {
                *original = std::mem::replace(&mut bytes[(at - addr) as usize], INT3);
            }
        }
        self.memory.write_all_at(&bytes, addr)
    }

    /// Writes what was in the place of a breakpoint, unless it is not there any more.
    fn put_back(&self, addr: u64, original: u8) {
        let mut now = [0];
        if self.read_raw(addr, &mut now).is_ok_and(|len| len == 1) && now[0] == INT3 {
            // Memory that is gone has no breakpoint.
            let _ = self.memory.write_all_at(&[original], addr);
        }
    }

    pub fn breakpoint(&self, addr: u64) -> Option<Breakpoint> {
        self.breakpoints.get(&addr).copied()
    }

    pub fn breakpoints(&self) -> impl Iterator<Item = u64> + '_ {
        self.breakpoints.keys().copied()
    }

    /// What the debug registers are to contain.
    pub fn hardware(&self) -> [u64; HARDWARE] {
        self.hardware
    }

    /// Sets one, unless there is one.
    pub fn set_breakpoint(&mut self, addr: u64) -> io::Result<()> {
        if self.breakpoint(addr).is_none() {
            let mut original = [0];
            self.memory.read_exact_at(&mut original, addr)?;
            self.memory.write_all_at(&[INT3], addr)?;
            self.gone.remove(&addr);
            self.breakpoints.insert(addr, Breakpoint::Software(original[0]));
        }
        Ok(())
    }

    pub fn set_hardware_breakpoint(&mut self, addr: u64) -> io::Result<()> {
        if self.breakpoint(addr).is_none() {
            let free = self.hardware.iter().position(|&other| other == 0);
            let free = free.ok_or_else(|| io::Error::from(io::ErrorKind::QuotaExceeded))?;
            self.hardware[free] = addr;
            self.breakpoints.insert(addr, Breakpoint::Hardware);
        }
        Ok(())
    }

    pub fn remove_breakpoint(&mut self, addr: u64) {
        let Some(breakpoint) = self.breakpoints.remove(&addr) else { return };
        self.gone.insert(addr);
        match breakpoint {
            Breakpoint::Software(original) => self.put_back(addr, original),
            Breakpoint::Hardware => {
                self.hardware.iter_mut().filter(|other| **other == addr).for_each(|other| *other = 0);
            }
        }
    }

    /// Whether a thread that has executed an `int3` there has only met a breakpoint that was removed since.
    pub fn was_breakpoint(&self, addr: u64) -> bool {
        let mut now = [0];
        self.gone.contains(&addr) && self.read_raw(addr, &mut now).is_ok_and(|len| len == 1) && now[0] != INT3
    }

    /// Has a thread execute the original instruction in place: until `cover`.
    pub fn uncover(&self, addr: u64) {
        if let Some(Breakpoint::Software(original)) = self.breakpoint(addr) {
            self.put_back(addr, original);
        }
    }

    pub fn cover(&self, addr: u64) {
        if let Some(Breakpoint::Software(_)) = self.breakpoint(addr) {
            // Memory that is gone needs none.
            let _ = self.memory.write_all_at(&[INT3], addr);
        }
    }

    pub fn is_slot_free(&self) -> bool {
        self.slot.is_none()
    }

    /// Takes the place where a thread may execute an instruction.
    pub fn take_slot(&mut self, tid: Tid, code: &[u8]) -> Option<u64> {
        let at = self.entry?;
        let mut before = [0; SLOT];
        self.memory.read_exact_at(&mut before, at).ok()?;
        self.memory.write_all_at(code, at).ok()?;
        self.slot = Some(Slot { tid, before });
        Some(at)
    }

    /// Gives it back.
    pub fn release_slot(&mut self, tid: Tid) {
        let slot = self.slot.take_if(|slot| slot.tid == tid);
        if let (Some(slot), Some(entry)) = (slot, self.entry) {
            // The process may have ended.
            let _ = self.memory.write_all_at(&slot.before, entry);
        }
    }
}
