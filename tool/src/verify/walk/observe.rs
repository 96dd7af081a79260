//! Compares one instruction. Keeps the observation if it does not match the known tables yet.

use std::io;

use jitsym_step::{Frame, Kind as FrameKind, Tid, KEPT};

use super::{Walk, BELOW, OPEN_MAX, OPEN_OF_ONE, STACK_MAX};
use crate::verify::process::Place;
use crate::verify::truth::{kept, numbered, Seen};

impl Walk<'_> {
    /// Compares the next instruction of a thread, or keeps the observation.
    pub(super) fn observe(&mut self, tid: Tid, place: Place) -> io::Result<()> {
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
        let seen = Seen { time: jitsym_step::now(), rip, code, registers, frame, from, stack, call, came_from };
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

    /// Notes that a call has returned, which proves that it was a real call.
    pub(super) fn returned(&mut self, id: u64, frame: &Frame, tid: Tid) -> io::Result<()> {
        let registers = self.tracer.registers(tid)?;
        let now = numbered(&registers);
        let kept = kept(frame, &now);
        let right = self.unsure.remove(&id).unwrap_or_default();
        match self.claims.remove(&id) {
            // The call has returned to the address that the tables gave, but with other register values.
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
}
