//! `jitsym stat`: prints counts and sizes of a file, and a picture of the addresses of code over time.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use jitsym::format::jitdump::raw::{End, RawHeader, RawLoad, RawRecord, RawRecords};
use jitsym::format::jitdump::{id, HEADER_SIZE};
use jitsym::format::perf_map::raw_lines;

use super::picture::{self, Block, Look};
use super::{machine_name, not_a_dump, region};
use crate::check::Facts;
use crate::kind::Kind;
use crate::text::{printable, RECORDS};

/// Prints the numbers, the names with the most bytes, and the picture.
pub fn stat(
    file: &[u8],
    facts: &Facts,
    look: Look,
    most: usize,
    progress: &mut dyn FnMut(u64),
    out: &mut dyn Write,
) -> io::Result<()> {
    match Kind::of(file, facts) {
        Kind::Jitdump => jitdump(file, look, most, progress, out),
        Kind::PerfMap => perf_map(file, look, most, progress, out),
        Kind::Region => region::stat(file, facts, look, most, out),
    }
}

/// Sizes whose distribution is printed.
#[derive(Default)]
pub(super) struct Sizes(pub Vec<u64>);

impl Sizes {
    pub fn text(mut self) -> String {
        self.0.sort_unstable();
        let (Some(least), Some(most)) = (self.0.first(), self.0.last()) else { return "none".into() };
        let sum: u128 = self.0.iter().map(|&size| u128::from(size)).sum();
        let middle = self.0[self.0.len() / 2];
        format!("{} pieces of {least} to {most} bytes, half of them below {middle}; {sum} bytes in all", self.0.len())
    }
}

/// Prints the names with the most bytes of code. Equal sizes are sorted by name.
pub(super) fn top<'a>(code: impl Iterator<Item = (&'a [u8], u64)>, most: usize, out: &mut dyn Write) -> io::Result<()> {
    if most == 0 {
        return Ok(());
    }
    let mut by_name: HashMap<&[u8], (u64, u128)> = HashMap::new();
    for (name, size) in code {
        let (count, bytes) = by_name.entry(name).or_default();
        (*count, *bytes) = (*count + 1, *bytes + u128::from(size));
    }
    let mut names: Vec<_> = by_name.into_iter().collect();
    names.sort_by(|(a, (_, more)), (b, (_, less))| less.cmp(more).then(a.cmp(b)));
    for (name, (count, bytes)) in names.into_iter().take(most) {
        writeln!(
            out,
            "  {bytes:10} bytes in {count:6} {}  {}",
            if count == 1 { "piece " } else { "pieces" },
            printable(name)
        )?;
    }
    Ok(())
}

/// The number and the bytes of one kind of record.
#[derive(Clone, Copy, Default)]
struct Records {
    count: u64,
    bytes: u64,
}

#[derive(Default)]
struct Jitdump<'a> {
    kinds: [Records; RECORDS.len() + 1],
    sizes: Sizes,
    names: HashSet<&'a [u8]>,
    name_bytes: u64,
    threads: HashSet<u32>,
    rows: u64,
    tables: u64,
    mapped: u64,
    code: Vec<(&'a [u8], u64)>,
    blocks: Vec<Block>,
    times: Vec<u64>,
}

impl<'a> Jitdump<'a> {
    fn add(&mut self, record: &RawRecord<'a>) {
        let kind = RECORDS.iter().position(|&(id, _)| id == record.id).unwrap_or(RECORDS.len());
        self.kinds[kind].count += 1;
        self.kinds[kind].bytes += record.size() as u64;
        match record.id {
            id::LOAD => {
                if let Some(load) = record.load() {
                    self.load(record.timestamp, &load);
                }
            }
            id::DEBUG_INFO => self.rows += record.debug_info().map_or(0, |debug| debug.entries().count() as u64),
            id::UNWINDING_INFO => {
                if let Some(unwinding) = record.unwinding_info() {
                    self.tables += unwinding.tables().map_or(0, |_| unwinding.size);
                    self.mapped += u64::from(unwinding.mapped_size != 0);
                }
            }
            _ => {}
        }
    }

    fn load(&mut self, time: u64, load: &RawLoad<'a>) {
        let name = load.name().unwrap_or_default();
        self.names.insert(name);
        self.name_bytes += name.len() as u64;
        self.threads.insert(load.tid);
        self.sizes.0.push(load.size);
        self.code.push((name, load.size));
        self.times.push(time);
        self.blocks.push(Block { time, start: load.addr, end: load.addr.saturating_add(load.size) });
    }
}

fn jitdump(file: &[u8], look: Look, most: usize, progress: &mut dyn FnMut(u64), out: &mut dyn Write) -> io::Result<()> {
    let header = RawHeader::read(file).ok_or_else(not_a_dump)?;
    let mut all = Jitdump::default();
    let mut records = RawRecords::new(file, &header);
    for record in records.by_ref() {
        progress(record.offset as u64);
        all.add(&record);
    }
    let longest = all.names.iter().map(|name| name.len()).max().unwrap_or(0);
    writeln!(out, "jitdump of process {}, {}, {} bytes", header.pid, machine_name(header.machine), file.len())?;
    let names = RECORDS.iter().map(|&(_, name)| name).chain(["unknown"]);
    for (name, kind) in names.zip(all.kinds).filter(|(_, kind)| kind.count > 0) {
        writeln!(out, "  {name:14} {:9} records {:12} bytes", kind.count, kind.bytes)?;
    }
    if records.end() != End::Clean {
        writeln!(out, "  {} bytes at the end are no whole record", records.rest().len())?;
    }
    let code: u128 = all.sizes.0.iter().map(|&size| u128::from(size)).sum();
    let other = (file.len().saturating_sub(HEADER_SIZE) as u128).saturating_sub(code);
    writeln!(out, "code       {}; everything else {other} bytes", all.sizes.text())?;
    writeln!(out, "names      {} different, {} bytes, the longest {longest}", all.names.len(), all.name_bytes)?;
    writeln!(out, "lines      {} tables, {} rows", all.kinds[1].count, all.rows)?;
    writeln!(out, "unwinding  {} tables, {} bytes, {} mapped", all.kinds[2].count, all.tables, all.mapped)?;
    writeln!(out, "threads    {}", all.threads.len())?;
    write_rates(all.times, header.arch_timestamp(), out)?;
    top(all.code.into_iter(), most, out)?;
    let seconds = if header.arch_timestamp() { None } else { Some("s") };
    picture::write(all.blocks, seconds, look, out)
}

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

fn write_rates(mut times: Vec<u64>, raw_counter: bool, out: &mut dyn Write) -> io::Result<()> {
    times.sort_unstable();
    let (Some(&first), Some(&last)) = (times.first(), times.last()) else { return Ok(()) };
    let (count, span) = (times.len(), last - first);
    if raw_counter {
        return writeln!(out, "time       {span} ticks of the counter");
    }
    let mut most = 0;
    let mut from = 0;
    for (at, &time) in times.iter().enumerate() {
        while time - times[from] >= MILLISECOND {
            from += 1;
        }
        most = most.max(at - from + 1);
    }
    let rate = count as f64 * SECOND as f64 / span.max(1) as f64;
    let seconds = span as f64 / SECOND as f64;
    if span == 0 {
        return writeln!(out, "time       all at once");
    }
    writeln!(out, "time       {seconds:.6} s, {rate:.0} pieces of code a second, at most {most} in a millisecond")
}

fn perf_map(
    file: &[u8],
    look: Look,
    most: usize,
    progress: &mut dyn FnMut(u64),
    out: &mut dyn Write,
) -> io::Result<()> {
    let (mut count, mut bad, mut done, mut longest) = (0, 0, 0, 0);
    let (mut sizes, mut names, mut blocks, mut code) = (Sizes::default(), HashSet::new(), Vec::new(), Vec::new());
    for line in raw_lines(file) {
        done += line.bytes.len() as u64 + 1;
        progress(done);
        match line.fields() {
            Some(fields) => {
                let end = fields.start.saturating_add(fields.size);
                blocks.push(Block { time: count, start: fields.start, end });
                sizes.0.push(fields.size);
                code.push((fields.name, fields.size));
                longest = longest.max(fields.name.len());
                names.insert(fields.name);
                count += 1;
            }
            None => bad += 1,
        }
    }
    writeln!(out, "perf map, {} bytes", file.len())?;
    writeln!(out, "lines      {count}, and {bad} that are none of a map")?;
    writeln!(out, "code       {}", sizes.text())?;
    writeln!(out, "names      {} different, the longest {longest} bytes", names.len())?;
    top(code.into_iter(), most, out)?;
    picture::write(blocks, None, look, out)
}
