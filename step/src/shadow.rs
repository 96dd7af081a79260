//! The calls of a thread that have not returned.

use std::io;

use iced_x86::{FlowControl, Mnemonic};

use crate::{maps, Mapping, Registers, Tid, Tracer};

/// What a function has to leave as it is: rbx, rbp, r12 to r15, by their DWARF numbers.
pub const KEPT: [u16; 6] = [3, 6, 12, 13, 14, 15];
/// The stack pointer's DWARF number.
pub const RSP: u16 = 7;

/// Sets of calls that are kept of stacks which a thread has left.
const PARKED_MAX: usize = 64;
/// A stack pointer that moves further down at once may be on another stack.
const FAR: u64 = 64 << 10;

/// How code was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By a call.
    Call,
    /// By the kernel, which has put a frame for a signal there.
    Signal {
        /// Where the interrupted code has its stack pointer.
        interrupted: u64,
    },
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// How it was made.
    pub kind: Kind,
    /// The stack pointer before the call instruction.
    pub cfa: u64,
    /// Where it returns to.
    pub return_address: u64,
    /// What was called. A jump to other code makes no frame, so that this may have ended.
    pub entry: u64,
    /// The registers at the call, by their DWARF numbers: those of [`KEPT`], and the stack pointer before it.
    pub registers: [u64; 16],
}

impl Frame {
    fn new(kind: Kind, now: &Registers, return_address: u64) -> Frame {
        let mut registers = [0; 16];
        let kept = [now.rbx, now.rbp, now.r12, now.r13, now.r14, now.r15];
        KEPT.iter().zip(kept).for_each(|(&number, value)| registers[usize::from(number)] = value);
        registers[usize::from(RSP)] = now.rsp.wrapping_add(8);
        Frame { kind, cfa: now.rsp.wrapping_add(8), return_address, entry: now.rip, registers }
    }
}

/// What a step was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No call or return.
    None,
    /// There is a frame more.
    Called,
    /// The last frame has returned to where it was called.
    Returned,
    /// Frames are gone without returning: an exception, `longjmp`, or a return to elsewhere.
    Left,
    /// The thread is on another stack.
    Switched,
}

/// The calls of one thread that have not returned, as far as they were stepped. The last one is the innermost. Where the thread was
/// not stepped, tell [`Shadow::clear`].
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    frames: Vec<Frame>,
    /// Of stacks that were left.
    parked: Vec<Vec<Frame>>,
    maps: Vec<Mapping>,
    /// Before the last step.
    rsp: u64,
}

impl Shadow {
    /// The calls, with the innermost at the end. Empty where no call was seen.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Nothing is known any more.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.parked.clear();
    }

    /// The thread stands at the entry of a function, as after a call.
    pub fn entered(&mut self, tracer: &mut Tracer, tid: Tid) -> io::Result<()> {
        let now = tracer.registers(tid)?;
        self.settle(tracer, tid, &now)?;
        // If it was seen already, the registers may be those of an earlier call.
        if self.frames.last().is_some_and(|frame| frame.cfa == now.rsp + 8) {
            self.frames.pop();
        }
        let frame = Frame::new(Kind::Call, &now, word(tracer, tid, now.rsp)?);
        self.frames.push(frame);
        self.rsp = now.rsp;
        Ok(())
    }

    /// The caller knows of a call that was not seen: the innermost one.
    pub fn push(&mut self, tracer: &mut Tracer, tid: Tid, frame: Frame) -> io::Result<()> {
        self.frames.push(frame);
        self.rsp = tracer.registers(tid)?.rsp;
        Ok(())
    }

    /// The thread has run without steps, and now stands behind the call that it was in: calls from there are gone.
    pub fn returned(&mut self, tracer: &mut Tracer, tid: Tid) -> io::Result<()> {
        let now = tracer.registers(tid)?;
        self.settle(tracer, tid, &now)?;
        self.rsp = now.rsp;
        Ok(())
    }

    /// A step has entered a signal's handler.
    pub fn signalled(&mut self, tracer: &mut Tracer, tid: Tid) -> io::Result<()> {
        let now = tracer.registers(tid)?;
        let kind = Kind::Signal { interrupted: self.rsp };
        self.frames.push(Frame::new(kind, &now, word(tracer, tid, now.rsp)?));
        self.rsp = now.rsp;
        Ok(())
    }

    /// A step has executed an instruction.
    pub fn stepped(&mut self, tracer: &mut Tracer, tid: Tid) -> io::Result<Change> {
        let now = tracer.registers(tid)?;
        let before = std::mem::replace(&mut self.rsp, now.rsp);
        let Some(executed) = tracer.executed(tid) else { return Ok(Change::None) };
        let (flow, mnemonic, next) = (executed.flow_control(), executed.mnemonic(), executed.next_ip());
        match flow {
            // A call of what follows, to find out where it is, is one as well, until its address is popped.
            FlowControl::Call | FlowControl::IndirectCall if mnemonic == Mnemonic::Call => {
                let return_address = word(tracer, tid, now.rsp)?;
                if return_address == next {
                    self.frames.push(Frame::new(Kind::Call, &now, return_address));
                    return Ok(Change::Called);
                }
            }
            // The only system call that goes elsewhere is the end of a handler.
            _ if mnemonic == Mnemonic::Syscall && now.rip != next && self.end_signal(&now) => {
                return Ok(Change::Returned);
            }
            _ => {}
        }
        let Some(last) = self.frames.last().copied() else { return Ok(Change::None) };
        let is_down = now.rsp < before.saturating_sub(FAR);
        if now.rsp < last.cfa && !is_down {
            return Ok(Change::None);
        }
        // A handler has returned to the code that ends it by a system call.
        if last.kind != Kind::Call && now.rsp == last.cfa {
            return Ok(Change::None);
        }
        // The usual return, of the last call alone.
        let is_return = flow == FlowControl::Return && before == last.cfa - 8;
        if is_return {
            self.frames.pop();
            let is_right = now.rip == last.return_address;
            return Ok(if is_right { Change::Returned } else { Change::Left });
        }
        self.settle(tracer, tid, &now)
    }

    /// Forgets a handler and what it has called.
    fn end_signal(&mut self, now: &Registers) -> bool {
        let is_it = |frame: &Frame| frame.kind == Kind::Signal { interrupted: now.rsp };
        let at = self.frames.iter().rposition(is_it);
        at.inspect(|&at| self.frames.truncate(at)).is_some()
    }

    /// Finds the calls that belong to where the stack pointer is now.
    fn settle(&mut self, tracer: &Tracer, tid: Tid, now: &Registers) -> io::Result<Change> {
        let pid = tracer.pid_of(tid).unwrap_or(tid);
        let mut all = std::mem::take(&mut self.parked);
        all.push(std::mem::take(&mut self.frames));
        let (current, unchanged) = (all.len() - 1, all[all.len() - 1].len());
        let found = all.iter().enumerate().rev();
        let found: Vec<(usize, usize)> =
            found.filter_map(|(index, frames)| Some((index, self.belonging(tracer, pid, frames, now.rsp)?))).collect();
        // Of two on the same stack the nearest is the one that lives.
        let nearest = found.into_iter().min_by_key(|&(index, len)| (all[index][len - 1].cfa, index != current));
        let change = match nearest {
            Some((index, len)) if index == current && len == unchanged => {
                self.frames = all.pop().unwrap_or_default();
                Change::None
            }
            Some((index, len)) => {
                self.frames = all[index][..len].to_vec();
                match index == current {
                    true => Change::Left,
                    false => {
                        all.remove(index);
                        Change::Switched
                    }
                }
            }
            None if unchanged == 0 => Change::None,
            None => Change::Switched,
        };
        // What was left on the same stack never comes back. On another one the thread may go on.
        if change == Change::Left {
            all.pop();
        }
        all.retain(|frames| !frames.is_empty());
        let surplus = all.len().saturating_sub(PARKED_MAX);
        all.drain(..surplus);
        self.parked = all;
        Ok(change)
    }

    /// How many of some calls have not returned where the stack pointer is this.
    fn belonging(&mut self, tracer: &Tracer, pid: Tid, frames: &[Frame], rsp: u64) -> Option<usize> {
        let at = frames.iter().rposition(|frame| {
            let slot = frame.cfa - 8;
            slot >= rsp
                && self.is_one_mapping(tracer, pid, rsp, slot)
                && tracer.word(pid, slot).is_ok_and(|word| word == frame.return_address)
        });
        at.map(|at| at + 1)
    }

    /// Whether two addresses may be on the same stack.
    fn is_one_mapping(&mut self, tracer: &Tracer, pid: Tid, one: u64, other: u64) -> bool {
        let is_one = |maps: &[Mapping]| maps::find(maps, one).is_some_and(|mapping| mapping.range.contains(&other));
        if !is_one(&self.maps) {
            self.maps = tracer.maps(pid).unwrap_or_default();
        }
        is_one(&self.maps)
    }
}

fn word(tracer: &Tracer, tid: Tid, addr: u64) -> io::Result<u64> {
    tracer.word(tracer.pid_of(tid).unwrap_or(tid), addr)
}
