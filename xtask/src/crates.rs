//! Crates that read the bytes: `linux-perf-data` the jitdump, `object` and `gimli` what `perf inject` has made of it.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::{bail, Context, Result};
use gimli::{EndianSlice, LittleEndian};
use linux_perf_data::jitdump::{JitDumpReader, JitDumpRecord};
use object::{Object, ObjectSection, ObjectSymbol};

use crate::matrix::{Outcome, What};
use crate::perf::{Graph, Mode, Perf, Recording};
use crate::program::Written;
use crate::raw;
use crate::score::{self, Frame, Kind, Sample, Share};
use crate::truth::{Truth, Unwind};

pub const MODES: &[Mode] = &[Mode::new("jitdump", Graph::FramePointers, Written::Jitdump)];

/// A piece of code as the dump has it.
struct Load {
    time: u64,
    addr: u64,
    index: u64,
    name: String,
    code: Vec<u8>,
    /// Address, line, file.
    lines: Vec<(u64, u32, String)>,
}

pub fn measure(perf: &Perf, recording: &Recording, dir: &Path) -> Result<Outcome> {
    // Nobody here has names for C functions.
    let truth = &recording.truth.without_native_names();
    let dump = truth.paths.get("jitdump").context("no jitdump")?;
    // The process may have a /tmp of its own; then it lives still.
    let root = format!("/proc/{}/root", truth.pid);
    let root = if Path::new(&root).exists() { root } else { String::new() };
    let loads = read_dump(Path::new(&format!("{root}{}", dump.display())))?;
    let pages = by_page(&loads);
    let frame = |time: u64, address: u64| match load_at(&loads, &pages, address, time) {
        Some(load) => Frame { name: Some(load.name.clone()), kind: Kind::Guest },
        None if truth.code_at(address, time).is_some() => Frame { name: None, kind: Kind::Guest },
        None => Frame { name: None, kind: Kind::Native },
    };
    let samples: Vec<Sample> = raw::samples(&recording.data)?
        .iter()
        .map(|sample| Sample {
            tid: sample.tid,
            time: sample.time,
            ip: sample.ip,
            name: frame(sample.time, sample.ip).name,
            frames: sample.chain.iter().map(|&address| frame(sample.time, address)).collect(),
        })
        .collect();
    // So that a stack that the program names one in cannot be told.
    let whole = matches!(truth.unwind()?, Unwind::Both | Unwind::FramePointers) && !truth.has_native_parts();
    let mut outcome = Outcome::of(score::score(truth, &samples, whole));

    perf.inject(dir, &recording.data)?;
    let directory = dump.parent().context("a jitdump without a directory")?;
    let mut objects = Share::default();
    for load in &loads {
        let path = format!("{root}{}/jitted-{}-{}.so", directory.display(), dump_pid(dump)?, load.index);
        let right = check_object(load, truth, &path);
        if let (Err(error), true) = (&right, outcome.wrong.len() < 30) {
            outcome.wrong.push(format!("{path}: {error:#}"));
        }
        objects.add(right.is_ok());
    }
    outcome.shares.push((What::Objects, objects));
    Ok(outcome)
}

/// The process id in the name of the dump, which is the one in its namespace.
fn dump_pid(dump: &Path) -> Result<&str> {
    let name = dump.file_name().and_then(|name| name.to_str()).context("the jitdump's name")?;
    name.strip_prefix("jit-").and_then(|name| name.strip_suffix(".dump")).context("the jitdump's name")
}

fn read_dump(path: &Path) -> Result<Vec<Load>> {
    let mut reader = JitDumpReader::new(File::open(path).with_context(|| format!("{}", path.display()))?)?;
    let (mut loads, mut lines) = (Vec::new(), Vec::new());
    while let Some(raw) = reader.next_record()? {
        let text = |bytes: &[u8]| String::from_utf8(bytes.into()).context("a name that is not UTF-8");
        match raw.parse()? {
            JitDumpRecord::CodeDebugInfo(record) => {
                for entry in &record.entries {
                    lines.push((entry.code_addr, entry.line, text(&entry.file_path.as_slice())?));
                }
            }
            JitDumpRecord::CodeLoad(record) => loads.push(Load {
                time: raw.timestamp,
                addr: record.code_addr,
                index: record.code_index,
                name: text(&record.function_name.as_slice())?,
                code: record.code_bytes.as_slice().into(),
                lines: std::mem::take(&mut lines),
            }),
            JitDumpRecord::CodeUnwindingInfo(_) => {}
            other => bail!("a record that readers cannot bear: {other:?}"),
        }
    }
    Ok(loads)
}

const PAGE: u64 = 4096;

fn by_page(loads: &[Load]) -> HashMap<u64, Vec<usize>> {
    let mut pages: HashMap<u64, Vec<usize>> = HashMap::new();
    for (index, load) in loads.iter().enumerate() {
        for page in load.addr / PAGE..=(load.addr + load.code.len() as u64) / PAGE {
            pages.entry(page).or_default().push(index);
        }
    }
    pages
}

/// The newest code of that time.
fn load_at<'l>(loads: &'l [Load], pages: &HashMap<u64, Vec<usize>>, address: u64, time: u64) -> Option<&'l Load> {
    let there = |load: &&Load| load.time <= time && (load.addr..load.addr + load.code.len() as u64).contains(&address);
    pages.get(&(address / PAGE))?.iter().map(|&index| &loads[index]).filter(there).max_by_key(|load| load.time)
}

/// An object of `perf inject` says of the code what the dump says, and what is true.
fn check_object(load: &Load, truth: &Truth, path: &str) -> Result<()> {
    let known = truth
        .codes
        .iter()
        .any(|code| code.addr == load.addr && code.size == load.code.len() as u64 && code.is_named(&load.name));
    if !known {
        bail!("{:?} at {:x} of {} bytes is not in the truth", load.name, load.addr, load.code.len());
    }
    let bytes = std::fs::read(path)?;
    let file = object::File::parse(&*bytes)?;
    let text = file.section_by_name(".text").context("no .text")?;
    if text.data()? != load.code {
        bail!("other code");
    }
    let symbols: Vec<_> = file.symbols().filter(|symbol| symbol.is_definition() && symbol.size() > 0).collect();
    let [symbol] = &symbols[..] else { bail!("{} symbols", symbols.len()) };
    let found = (symbol.name()?, symbol.address(), symbol.size());
    if found != (&load.name, text.address(), load.code.len() as u64) {
        bail!("the symbol is {found:x?} instead of {:?} at {:x}", load.name, text.address());
    }
    let shift = load.addr.wrapping_sub(text.address());
    let rows = rows(&file)?;
    for &(address, line, ref name) in &load.lines {
        // The last one only says where the code ends.
        if address == load.addr + load.code.len() as u64 {
            continue;
        }
        if !rows.iter().any(|row| row.0.wrapping_add(shift) == address && row.1 == line && name.ends_with(&row.2)) {
            bail!("no line {line} of {name} at {address:x} in {rows:x?}");
        }
    }
    Ok(())
}

/// Address, line and file of each row of the line table.
fn rows(file: &object::File) -> Result<Vec<(u64, u32, String)>> {
    let load = |id: gimli::SectionId| -> Result<EndianSlice<LittleEndian>, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|section| section.data().ok());
        Ok(EndianSlice::new(data.unwrap_or_default(), LittleEndian))
    };
    let dwarf = gimli::Dwarf::load(load)?;
    let mut rows = Vec::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        let unit = dwarf.unit(header)?;
        let Some(program) = unit.line_program.clone() else { continue };
        let mut program = program.rows();
        while let Some((header, row)) = program.next_row()? {
            if row.end_sequence() {
                continue;
            }
            let file = row.file(header).context("row without a file")?;
            let name = dwarf.attr_string(&unit, file.path_name())?.to_string_lossy().into_owned();
            rows.push((row.address(), row.line().map_or(0, |line| line.get() as u32), name));
        }
    }
    Ok(rows)
}
