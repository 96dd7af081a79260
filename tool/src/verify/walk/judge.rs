//! When a process ends, compares the kept observations with all its files.

use std::time::Duration;

use jitsym_step::Tid;

use super::{Walk, BEHIND};
use crate::verify::code::Piece;
use crate::verify::finding::{Finding, Kind};
use crate::verify::process::Process;
use crate::verify::truth::{instruction, Difference, Seen};

impl Walk<'_> {
    /// Judges all open observations at the end of the run.
    pub(super) fn judge(&mut self) {
        let all: Vec<Tid> = self.processes.keys().copied().collect();
        all.into_iter().for_each(|pid| self.judge_process(pid));
        self.findings.sort();
        self.coverage.instructions = self.compared.len();
        self.coverage.proved = self.proved.len();
        self.coverage.jumps = self.unsure.len() as u64;
    }

    pub(super) fn judge_process(&mut self, pid: Tid) {
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
            // If a call has never returned, it may not have been a real call.
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

/// A finding for code that no file describes. `None` if the code from which it was reached is already reported.
fn unregistered(process: &Process, seen: &Seen, is_first: bool) -> Option<Finding> {
    let piece_at = |addr: u64| process.book.at_time(addr, seen.time).map(|index| &process.book.pieces[index]);
    let entry = seen.frame.map(|frame| frame.entry);
    let before = piece_at(seen.came_from);
    // The function continues after its registered end, or unregistered code follows it.
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
        // Each unknown function is reported once.
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
