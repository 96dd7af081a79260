//! Checks a DEBUG_INFO2 record, which contains the inlined functions of a piece of code, against the code.

use jitsym::format::jitdump::debug_info2::RawDebug2;

use super::rules::{self, Rule};
use super::{Finding, Place, Report};

/// A DEBUG_INFO2 record and the LOAD after it.
pub(super) struct Inlines<'a> {
    /// The offset of the record.
    pub offset: usize,
    /// The name in the LOAD.
    pub name: &'a str,
    /// `None` if the lists of the record do not fit into the record.
    pub debug: Option<RawDebug2<'a>>,
    /// The address of the code.
    pub addr: u64,
    pub size: u64,
}

impl Inlines<'_> {
    pub fn check(&self, report: &mut dyn Report) {
        let mut found = |rule: &'static Rule, text: String| {
            let (place, subject) = (Place::Offset(self.offset as u64), format!("DEBUG_INFO2 of \"{}\"", self.name));
            report.finding(Finding { rule, place, subject, text });
        };
        found(&rules::INLINES_PRESENT, "it is for samply alone".into());
        let Some(debug) = self.debug else {
            found(&rules::INLINES_TORN, "the code offsets and positions are longer than the record".into());
            return;
        };
        if debug.addr != self.addr {
            found(&rules::INLINES_ADDRESS, format!("code_addr is {:#x}, not {:#x}", debug.addr, self.addr));
        }
        let strings = debug.strings().count();
        if strings as u64 != debug.string_count {
            let text = format!("string_count is {}, and {strings} are there", debug.string_count);
            found(&rules::INLINES_TORN, text);
        } else {
            self.indices(&debug, strings, &mut found);
        }
        self.offsets(&debug, &mut found);
        if let Some(index) = circle(&debug) {
            found(&rules::INLINES_CIRCLE, format!("position {index} is among its own callers"));
        }
    }

    /// Checks the code offsets. For each problem, only the first entry is reported.
    fn offsets(&self, debug: &RawDebug2, found: &mut dyn FnMut(&'static Rule, String)) {
        match debug.offsets().next() {
            None => found(&rules::INLINES_EMPTY, "code_offset_count is 0".into()),
            Some((first, _)) if first != 0 => {
                found(&rules::INLINES_START, format!("the first code offset is {first:#x}"))
            }
            Some(_) => {}
        }
        let offsets = || debug.offsets().map(|(offset, _)| offset).enumerate();
        if let Some((number, offset)) = offsets().find(|&(_, offset)| u64::from(offset) >= self.size) {
            let text = format!("code offset {number}: {offset:#x}, the code has {:#x} bytes", self.size);
            found(&rules::INLINES_OUTSIDE, text);
        }
        if let Some(((number, offset), (_, before))) =
            offsets().skip(1).zip(offsets()).find(|(one, last)| one.1 <= last.1)
        {
            let text = format!("code offset {number}: {offset:#x} comes after {before:#x}");
            found(&rules::INLINES_UNSORTED, text);
        }
    }

    fn indices(&self, debug: &RawDebug2, strings: usize, found: &mut dyn FnMut(&'static Rule, String)) {
        let positions = debug.position_count();
        if let Some((offset, index)) = debug.offsets().find(|&(_, index)| index as usize >= positions) {
            found(&rules::INLINES_INDEX, format!("source_position at {offset:#x} is {index} of {positions}"));
        }
        // A missing caller or file is -1. A function always has a name.
        let is_bad = |index: i32, count: usize| index < -1 || usize::try_from(index).is_ok_and(|index| index >= count);
        let bad = (0..positions).find_map(|index| {
            let position = debug.position(index)?;
            let (name, value, count) = match position {
                _ if is_bad(position.caller, positions) => ("caller_index", position.caller.into(), positions),
                _ if position.function as usize >= strings => ("function_name", i64::from(position.function), strings),
                _ if is_bad(position.file, strings) => ("file", position.file.into(), strings),
                _ => return None,
            };
            Some(format!("{name} of position {index} is {value} of {count}"))
        });
        if let Some(text) = bad {
            found(&rules::INLINES_INDEX, text);
        }
    }
}

/// Returns a position that is among its own callers.
fn circle(debug: &RawDebug2) -> Option<usize> {
    let caller = |index: usize| usize::try_from(debug.position(index)?.caller).ok();
    // For each position, the walk that reached it first.
    let mut walks = vec![usize::MAX; debug.position_count()];
    for walk in 0..walks.len() {
        let mut next = Some(walk);
        while let Some(index) = next {
            match walks.get_mut(index) {
                Some(reached) if *reached == usize::MAX => *reached = walk,
                Some(reached) if *reached == walk => return Some(index),
                _ => break,
            }
            next = caller(index);
        }
    }
    None
}
