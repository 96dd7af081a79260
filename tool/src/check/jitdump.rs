//! Checks the records of a jitdump in the order in which perf reads them.

use std::collections::HashMap;
use std::fmt::Display;

use jitsym::format::jitdump::debug_info2::{RawDebug2, DEBUG2_FIXED_SIZE};
use jitsym::format::jitdump::raw::{End, RawDebug, RawHeader, RawLoad, RawRecord, RawRecords, RawUnwinding};
use jitsym::format::jitdump::UNWINDING_FIXED_SIZE;
use jitsym::format::jitdump::{id, DEBUG_FIXED_SIZE, HEADER_SIZE, LOAD_FIXED_SIZE, MOVE_SIZE, PREFIX_SIZE};
use jitsym::format::name;

use super::frames;
use super::header::{self, TODAY};
use super::inlines::Inlines;
use super::lines::Lines;
use super::places::{Load, Places};
use super::rules::{self, Rule};
use super::unwinding::Tables;
use super::{Finding, Place, Report, Summary};
use crate::tables::Target;
use crate::text::{has_control, is_mangled, is_type_code, shortened, RECORDS};

pub(super) fn check(file: &[u8], report: &mut dyn Report) {
    let Some(header) = RawHeader::read(file) else {
        let (rule, text) = if RawHeader::has_magic(file) || file.len() < 4 {
            (&rules::HEADER_TORN, format!("there are {} bytes of {HEADER_SIZE}", file.len()))
        } else {
            (&rules::BAD_MAGIC, format!("it begins with {:02x?}", &file[..4]))
        };
        report.finding(Finding { rule, place: Place::Offset(0), subject: String::new(), text });
        return;
    };
    let mut check = Check {
        header,
        target: Target::new(&header),
        report,
        inlines: None,
        debug: None,
        unwinding: None,
        closed: None,
        stopped: None,
        last_time: None,
        unbiased: false,
        unwinds: false,
        without_tables: 0,
        summary: Summary::default(),
        code_sum: 0,
        indices: HashMap::new(),
        places: Places::default(),
    };
    header::check(&header, file, check.report);
    check.records(file);
}

struct Check<'a, 'r> {
    header: RawHeader,
    target: Target,
    report: &'r mut dyn Report,
    /// The record that samply keeps for the next LOAD, with its offset. The fields are `None` if they do not fit into the
    /// record.
    inlines: Option<(usize, Option<RawDebug2<'a>>)>,
    /// The tables that perf keeps for the next LOAD, with the offsets of their records.
    debug: Option<(usize, RawDebug<'a>)>,
    unwinding: Option<(usize, RawUnwinding<'a>)>,
    /// The offset of a CLOSE that may still be the last record.
    closed: Option<usize>,
    /// The offset and the id of another 16-byte record that may still be the last record.
    stopped: Option<(usize, u32)>,
    last_time: Option<u64>,
    /// Whether a line table had addresses that cannot be too high. One such line table shows that the other line tables are
    /// also right.
    unbiased: bool,
    /// Whether the file has an UNWINDING_INFO.
    unwinds: bool,
    /// The number of pieces without unwind tables.
    without_tables: u64,
    summary: Summary,
    code_sum: u128,
    /// The offset at which each code index was first used.
    indices: HashMap<u64, usize>,
    places: Places,
}

impl<'a> Check<'a, '_> {
    fn found(&mut self, rule: &'static Rule, offset: usize, subject: impl Display, text: impl Display) {
        let (subject, text) = (subject.to_string(), text.to_string());
        self.report.finding(Finding { rule, place: Place::Offset(offset as u64), subject, text });
    }

    fn records(&mut self, file: &'a [u8]) {
        let mut records = RawRecords::new(file, &self.header);
        for record in records.by_ref() {
            if !self.report.progress(record.offset as u64) {
                return;
            }
            self.not_last(record.offset);
            self.record(&record);
        }
        self.end(&records);
        // The tables of a torn LOAD are lost with it.
        if records.end() == End::Clean {
            self.orphans("the end of the file");
        }
        if let Some(offset) = self.closed {
            self.found(&rules::CLOSE_LAST, offset, "CLOSE", "it is the last record");
        }
        if self.places.is_empty() {
            self.report.finding(Finding {
                rule: &rules::NO_CODE,
                place: Place::File,
                subject: String::new(),
                text: "there is no JIT_CODE_LOAD".into(),
            });
        }
        self.whole_file();
        std::mem::take(&mut self.places).check(file, &self.header, self.report);
    }

    fn whole_file(&mut self) {
        let mut found = |rule: &'static Rule, text: String| {
            self.report.finding(Finding { rule, place: Place::File, subject: String::new(), text });
        };
        if self.code_sum > u32::MAX.into() {
            found(&rules::CODE_SUM, format!("there are {} bytes of code", self.code_sum));
        }
        if self.without_tables > 0 {
            let all = self.places.len();
            found(&rules::UNWIND_MISSING, format!("{} of {all} pieces of code have no tables", self.without_tables));
        }
        self.report.summary(self.summary);
    }

    /// Reports a record that may only be the last, but is followed by another record.
    fn not_last(&mut self, next: usize) {
        if let Some(offset) = self.closed.take() {
            self.stopped = None;
            self.found(&rules::CLOSE_NOT_LAST, offset, "CLOSE", format!("the next record is at {next:#x}"));
        }
        if let Some((offset, id)) = self.stopped.take() {
            self.found(&rules::RECORD_16_BYTES, offset, kind(id), format!("the next record is at {next:#x}"));
        }
    }

    fn record(&mut self, record: &RawRecord<'a>) {
        let (offset, size) = (record.offset, record.size());
        let what = kind(record.id);
        if size % 8 != 0 {
            self.found(&rules::RECORD_UNALIGNED, offset, what, format!("it has {size} bytes"));
        }
        self.time(record);
        if size == PREFIX_SIZE && record.id != id::CLOSE {
            self.stopped = Some((offset, record.id));
        }
        let needed = match record.id {
            id::LOAD => LOAD_FIXED_SIZE + 1,
            id::MOVE => MOVE_SIZE,
            id::DEBUG_INFO2 => DEBUG2_FIXED_SIZE,
            id::DEBUG_INFO => DEBUG_FIXED_SIZE,
            id::UNWINDING_INFO => UNWINDING_FIXED_SIZE,
            _ => PREFIX_SIZE,
        };
        if size < needed {
            self.found(&rules::RECORD_SHORT, offset, what, format!("it has {size} bytes of at least {needed}"));
            return;
        }
        match record.id {
            id::LOAD => {
                if let Some(load) = record.load() {
                    self.load(offset, record.timestamp, &load);
                }
            }
            id::DEBUG_INFO2 => {
                self.dangling_inlines("another one");
                self.inlines = Some((offset, record.debug_info2()));
            }
            id::DEBUG_INFO => {
                if let Some((before, _)) = self.debug.take() {
                    self.dangling_debug(before, "another JIT_CODE_DEBUG_INFO");
                }
                self.debug = record.debug_info().map(|debug| (offset, debug));
            }
            id::UNWINDING_INFO => {
                if let Some((before, _)) = self.unwinding.take() {
                    self.dangling_unwinding(before, "another JIT_CODE_UNWINDING_INFO");
                }
                self.unwinding = record.unwinding_info().map(|unwinding| (offset, unwinding));
                if !std::mem::replace(&mut self.unwinds, true) {
                    self.found(&rules::UNWIND_PRESENT, offset, what, "it is the first one");
                }
            }
            id::CLOSE => {
                self.orphans("a JIT_CODE_CLOSE");
                self.closed = Some(offset);
            }
            id::MOVE => {
                self.orphans("a JIT_CODE_MOVE");
                if let Some(moved) = record.code_move() {
                    let text =
                        format!("code {} moves from {:#x} to {:#x}", moved.index, moved.old_addr, moved.new_addr);
                    self.found(&rules::CODE_MOVE, offset, what, text);
                }
            }
            id => {
                self.orphans("a record of unknown kind");
                self.found(&rules::RECORD_UNKNOWN, offset, what, format!("its id is {id}, its size {size}"));
            }
        }
    }

    fn time(&mut self, record: &RawRecord) {
        let (offset, what, time) = (record.offset, kind(record.id), record.timestamp);
        if let Some(last) = self.last_time.filter(|&last| time < last) {
            let text = format!("{time} is {} ns before the record in front of it", last - time);
            self.found(&rules::TIME_BACKWARDS, offset, what, text);
        }
        if !self.header.arch_timestamp() && TODAY.contains(&time) {
            self.found(
                &rules::TIME_WALL_CLOCK,
                offset,
                what,
                format!("{time} is no time since the machine was started"),
            );
        }
        self.last_time = Some(time);
    }

    /// Reports tables that no LOAD follows, because the next record is not a LOAD.
    fn orphans(&mut self, next: &str) {
        self.dangling_inlines(next);
        if let Some((offset, _)) = self.debug.take() {
            self.dangling_debug(offset, next);
        }
        if let Some((offset, _)) = self.unwinding.take() {
            self.dangling_unwinding(offset, next);
        }
    }

    fn dangling_inlines(&mut self, next: &str) {
        if let Some((offset, _)) = self.inlines.take() {
            self.found(&rules::INLINES_DANGLING, offset, "DEBUG_INFO2", format!("behind it is {next}"));
        }
    }

    fn dangling_debug(&mut self, offset: usize, next: &str) {
        self.found(&rules::DEBUG_DANGLING, offset, "DEBUG_INFO", format!("behind it is {next}"));
    }

    fn dangling_unwinding(&mut self, offset: usize, next: &str) {
        self.found(&rules::UNWIND_DANGLING, offset, "UNWINDING_INFO", format!("behind it is {next}"));
    }

    fn load(&mut self, offset: usize, time: u64, load: &RawLoad<'a>) {
        let name = shortened(load.name().unwrap_or_default()).to_string();
        let mut mapped_size = 0;
        self.summary.pieces += 1;
        if let Some((offset, debug)) = self.inlines.take() {
            Inlines { offset, name: &name, debug, addr: load.addr, size: load.size }.check(self.report);
        }
        if let Some((at, debug)) = self.debug.take() {
            self.summary.with_lines += u64::from(debug.count > 0);
            let may_be_biased = !self.unbiased;
            let lines =
                Lines { offset: at, name: &name, debug: &debug, addr: load.addr, size: load.size, may_be_biased };
            self.unbiased |= lines.check(self.report);
        }
        if let Some((at, unwinding)) = self.unwinding.take() {
            mapped_size = unwinding.mapped_size;
            self.summary.with_tables += 1;
            self.summary.with_mapped += u64::from(mapped_size != 0);
            let (size, target) = (load.size, self.target);
            let code = frames::code_of(load).unwrap_or_default();
            Tables { offset: at, name: &name, unwinding: &unwinding, size, target, code }.check(self.report);
        } else {
            self.without_tables += 1;
        }
        self.code_sum += u128::from(load.size);
        let subject = &*format!("LOAD \"{name}\"");
        self.load_fields(offset, subject, load);
        match load.name() {
            Some(name) => {
                self.name(offset, subject, name);
                self.code(offset, subject, load, &load.tail[name.len() + 1..]);
            }
            None => self.found(&rules::NAME_UNTERMINATED, offset, subject, "there is no NUL in the record"),
        }
        self.places.push(Load { time, addr: load.addr, size: load.size, mapped_size, offset });
    }

    fn process_fields(&mut self, offset: usize, subject: &str, load: &RawLoad) {
        if load.pid != self.header.pid {
            let text = format!("pid is {}, and {} in the header", load.pid, self.header.pid);
            self.found(&rules::LOAD_PID, offset, subject, text);
        }
        if load.tid == 0 {
            self.found(&rules::LOAD_TID_ZERO, offset, subject, "tid is 0");
        }
        if load.vma != load.addr {
            let text = format!("vma is {:#x}, and code_addr {:#x}", load.vma, load.addr);
            self.found(&rules::VMA_DIFFERS, offset, subject, text);
        }
    }

    fn load_fields(&mut self, offset: usize, subject: &str, load: &RawLoad) {
        self.process_fields(offset, subject, load);
        if load.addr == 0 || load.addr.checked_add(load.size).is_none() {
            let text = format!("code_addr is {:#x}, and code_size {:#x}", load.addr, load.size);
            self.found(&rules::ADDRESS_RANGE, offset, subject, text);
        }
        match self.indices.get(&load.index).copied() {
            Some(first) => {
                let text = format!("code_index {} is that of the record at {first:#x}", load.index);
                self.found(&rules::INDEX_REUSED, offset, subject, text);
            }
            None => drop(self.indices.insert(load.index, offset)),
        }
    }

    fn name(&mut self, offset: usize, subject: &str, name: &[u8]) {
        if name.is_empty() {
            self.found(&rules::NAME_EMPTY, offset, subject, "the name is empty");
        }
        if std::str::from_utf8(name).is_err() {
            self.found(&rules::NAME_NOT_UTF8, offset, subject, format!("the name is {}", shortened(name)));
        }
        if has_control(name) {
            self.found(&rules::NAME_CONTROL, offset, subject, format!("the name is {}", shortened(name)));
        }
        if is_mangled(name) {
            self.found(&rules::NAME_DEMANGLED, offset, subject, format!("the name is {}", shortened(name)));
        }
        if is_type_code(name) {
            self.found(&rules::NAME_TYPE_CODE, offset, subject, format!("the name is {}", shortened(name)));
        }
        if name.len() > name::MAX {
            self.found(&rules::NAME_LONG, offset, subject, format!("the name has {} bytes", name.len()));
        }
    }

    fn code(&mut self, offset: usize, subject: &str, load: &RawLoad, behind_name: &[u8]) {
        let there = behind_name.len() as u64;
        if load.size == 0 {
            self.found(&rules::CODE_SIZE_ZERO, offset, subject, "code_size is 0");
        }
        if load.size > i32::MAX as u64 {
            self.found(&rules::CODE_SIZE_LIMIT, offset, subject, format!("code_size is {}", load.size));
        }
        if load.size > there {
            let text = format!("code_size is {}, and {there} bytes are behind the name", load.size);
            self.found(&rules::CODE_SIZE_TOO_LARGE, offset, subject, text);
        } else if load.size < there && load.size > 0 {
            // Some readers locate the code from the start of the record and others from its end, so some of them get zeros.
            let padding = (there - load.size) as usize;
            let zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
            let (front, back) = (zero(&behind_name[..padding]), zero(&behind_name[behind_name.len() - padding..]));
            let (rule, place) = if back && !front {
                (&rules::PADDING_AFTER_CODE, "code")
            } else {
                (&rules::PADDING_AFTER_NAME, "name")
            };
            let text = format!("{padding} bytes are behind the {place}");
            self.found(rule, offset, subject, text);
        }
    }

    fn end(&mut self, records: &RawRecords) {
        let (offset, rest) = (records.offset(), records.rest().len());
        let end = records.end();
        if end != End::Clean {
            self.not_last(offset);
        }
        match end {
            End::Clean => {}
            End::Zeros => {
                self.found(&rules::ZERO_TAIL, offset, "", format!("{rest} bytes to the end of the file are zero"));
            }
            End::TooSmall(size) => {
                let text = format!("it announces {size} bytes, and {rest} bytes to the end of the file are lost");
                self.found(&rules::RECORD_TOO_SMALL, offset, "record", text);
            }
            End::Torn(size) => {
                let text = format!("it announces {size} bytes, and {rest} are left");
                self.found(&rules::TRUNCATED, offset, "record", text);
            }
            End::TornPrefix => {
                self.found(&rules::TRUNCATED, offset, "record", format!("{rest} bytes are left of its prefix of 16"));
            }
        }
    }
}

/// The name of a kind of record.
fn kind(id: u32) -> &'static str {
    RECORDS.iter().find(|&&(known, _)| known == id).map_or("record", |&(_, name)| name)
}
