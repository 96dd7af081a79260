//! Writes the recording of a bundle: the events that reports need, and samples without copies of stacks and registers.
//!
//! Only the kinds of events and fields that are listed here are written, so new kinds cannot add secrets.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::chains::Chains;
use super::names::Names;
use super::sample::{of_kernel, Form, CONTEXT_USER};
use super::space::Change;
use crate::open;
use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, mapping, misc, user_mapping, Event, Events, OFFSET};
use crate::perf_data::{feature, invalid, u16_at, u64_at, Layout, ATTRIBUTES, EVENTS, EVENTS_LEN, FEATURES, HEADER};
use crate::record::children;
use crate::record::script::is_memory;

/// Events without contents of memory. Those of the kernel are MMAP, LOST, COMM, EXIT, THROTTLE, UNTHROTTLE, FORK, MMAP2,
/// LOST_SAMPLES, SWITCH, SWITCH_CPU_WIDE, NAMESPACES, KSYMBOL, BPF_EVENT and CGROUP. Those of perf are FINISHED_ROUND,
/// ID_INDEX, THREAD_MAP, CPU_MAP, EVENT_UPDATE, TIME_CONV and FINISHED_INIT.
const KEPT: [u32; 22] = [1, 2, 3, 4, 5, 6, 7, 10, 13, 14, 15, 16, 17, 18, 19, 68, 69, 73, 74, 78, 79, 82];
/// The features of a recording that a bundle has (linux tools/perf/util/header.h): build-ids, the kernel's release, perf's
/// version, the machine, processors and memory, descriptions of events and groups, times and clocks. The name of the machine
/// is left out, and so is perf's command line, which has the arguments of the recorded command.
const FEATURES_KEPT: [u32; 16] = [feature::BUILD_ID, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 17, 21, 23, 29];
/// The offsets of the size and the bytes of the build-id, in a mapping and in an entry of the table of build-ids.
const IN_MAPPING: (usize, usize) = (40, 44);
const IN_TABLE: (usize, usize) = (32, 12);
/// The offset of the name in an entry of the table.
const NAME_IN_TABLE: usize = 36;
/// The beginning of the path of the kernel's mapping. The name of a symbol follows, and the field for the offset contains the
/// address of this symbol.
const KERNEL: &[u8] = b"[kernel.kallsyms]";

/// A recording that is read.
pub struct Recording<'f> {
    file: &'f File,
    layout: Layout,
    /// The forms of the samples, with the ids of their events.
    forms: Vec<Form>,
    by_id: HashMap<u64, usize>,
}

/// The results of a pass over all events.
#[derive(Debug, Default)]
pub struct Found {
    pub changes: Vec<(u64, Change)>,
    pub build_ids: HashMap<String, Vec<u8>>,
    /// The symbol in the path of the kernel's mapping.
    pub kernel: BTreeMap<u64, String>,
}

impl<'f> Recording<'f> {
    pub fn open(file: &'f File) -> io::Result<Recording<'f>> {
        let layout = Layout::read(file)?;
        if layout.is_pipe() {
            return invalid("was written to a pipe: record with `perf record -o FILE`");
        }
        if layout.feature(feature::AUXTRACE).is_some() {
            return invalid("has a trace of the processor, from which perf makes samples: a bundle has no traces");
        }
        let start = u64_at(&layout.header, ATTRIBUTES);
        let size = u64_at(&layout.header, 16);
        let mut forms = Vec::new();
        for number in 0..layout.attributes.len() as u64 {
            let attribute = open::read_at(file, start + size * number, size - 16)?;
            if !Form::is_whole(&attribute) {
                return invalid("is a recording of an unknown version of perf");
            }
            forms.push(Form::of(&attribute));
        }
        if forms.iter().any(Form::is_tracepoint) {
            return invalid("has tracepoints, whose contents a bundle does not have");
        }
        let mut by_id = HashMap::new();
        if !forms.windows(2).all(|two| two[0].is_like(&two[1])) {
            if !forms.iter().all(Form::has_identifier) {
                return invalid("has several kinds of events that cannot be told apart");
            }
            let ids = layout.attributes.iter().enumerate();
            by_id = ids.flat_map(|(at, attribute)| attribute.ids.iter().map(move |&id| (id, at))).collect();
        }
        Ok(Recording { file, layout, forms, by_id })
    }

    fn form(&self, sample: &Event<'_>) -> Option<&Form> {
        match self.by_id.is_empty() {
            true => self.forms.first(),
            false => self.forms.get(*self.by_id.get(&u64_at(sample.bytes, 8))?),
        }
    }

    /// Reads all events except samples.
    pub fn survey(&self, names: &mut Names) -> io::Result<Found> {
        let times = Forms::new(&self.layout.attributes)?;
        let mut found = Found::default();
        self.build_ids(&mut found)?;
        Events::new(self.file, &self.layout)?.each(&mut |_| go_on(), &mut |event| {
            if event.kind() == kind::CALLCHAIN_DEFERRED {
                return invalid("has call chains that come after their samples, which a bundle does not have");
            }
            if let Some(change) = Change::of(event, names) {
                found.changes.push((times.time(event).unwrap_or(0), change));
            }
            if let Some(mapped) = mapping(event.bytes) {
                let symbol = mapped.name.strip_prefix(KERNEL).filter(|_| mapped.pid == u32::MAX);
                if let Some(symbol) = symbol.filter(|symbol| !symbol.is_empty()) {
                    let name = String::from_utf8_lossy(symbol).into_owned();
                    found.kernel.insert(u64_at(event.bytes, OFFSET), name);
                }
                if event.kind() == kind::MMAP2 && event.misc() & misc::HAS_BUILD_ID != 0 {
                    add_build_id(&mut found.build_ids, event.bytes, IN_MAPPING, mapped.name);
                }
            }
            Ok(())
        })?;
        found.changes.sort_by_key(|(time, _)| *time);
        Ok(found)
    }

    /// Reads the table of build-ids.
    fn build_ids(&self, found: &mut Found) -> io::Result<()> {
        let Some(place) = self.layout.feature(feature::BUILD_ID) else { return Ok(()) };
        let table = open::read_at(self.file, place.start, place.end - place.start)?;
        let mut rest = &table[..];
        while let Some((entry, more)) = rest.split_at_checked(usize::from(u16_at(rest, 6)).max(NAME_IN_TABLE)) {
            rest = more;
            let name = entry[NAME_IN_TABLE..].split(|&byte| byte == 0).next().unwrap_or_default();
            let mut entry = entry.to_vec();
            if u16_at(&entry, 4) & misc::HAS_SIZE == 0 {
                entry[IN_TABLE.0] = 20;
            }
            add_build_id(&mut found.build_ids, &entry, IN_TABLE, name);
        }
        Ok(())
    }

    /// Writes the recording of the bundle. Returns the number of samples.
    pub fn write(&self, chains: &mut Chains, out: &File) -> io::Result<u64> {
        let times = Forms::new(&self.layout.attributes)?;
        let mut out = BufWriter::with_capacity(1 << 18, out);
        out.write_all(&[0; HEADER])?;
        let mut at = HEADER as u64;
        let mut ids = Vec::new();
        for attribute in &self.layout.attributes {
            let bytes: Vec<u8> = attribute.ids.iter().flat_map(|id| id.to_ne_bytes()).collect();
            out.write_all(&bytes)?;
            ids.push((at, bytes.len() as u64));
            at += bytes.len() as u64;
        }
        let attributes = at;
        for (form, (ids_at, ids_len)) in self.forms.iter().zip(ids) {
            out.write_all(&form.attribute)?;
            out.write_all(&[ids_at, ids_len].map(u64::to_ne_bytes).concat())?;
            at += form.attribute.len() as u64 + 16;
        }
        let (events, mut samples) = (at, 0);
        let mut bytes = Vec::new();
        Events::new(self.file, &self.layout)?.each(&mut |_| go_on(), &mut |event| {
            bytes.clear();
            match event.kind() {
                kind::SAMPLE => {
                    self.sample(event, times.time(event).unwrap_or(0), chains, &mut bytes)?;
                    samples += 1;
                }
                number if KEPT.contains(&number) => keep(event, chains, &mut bytes)?,
                _ => {}
            }
            at += bytes.len() as u64;
            out.write_all(&bytes)
        })?;
        let events_len = at - events;
        let kept = |number: &u32| FEATURES_KEPT.contains(number);
        let features: Vec<_> = self.layout.features.iter().filter(|(number, _)| kept(number)).collect();
        let mut place = at + 16 * features.len() as u64;
        let mut header = self.layout.header.clone();
        header.resize(HEADER, 0);
        header[FEATURES..].fill(0);
        for (number, range) in &features {
            header[FEATURES + *number as usize / 8] |= 1 << (number % 8);
            let len = range.end - range.start;
            out.write_all(&[place, len].map(u64::to_ne_bytes).concat())?;
            place += len;
        }
        for (_, range) in &features {
            out.write_all(&open::read_at(self.file, range.start, range.end - range.start)?)?;
        }
        let attributes_len = events - attributes;
        // The range of a table that no reader uses follows.
        let words = [attributes, attributes_len, events, events_len, 0, 0];
        header[ATTRIBUTES..FEATURES].copy_from_slice(&words.map(u64::to_ne_bytes).concat());
        const { assert!(EVENTS == ATTRIBUTES + 16 && EVENTS_LEN == EVENTS + 8) };
        out.seek(SeekFrom::Start(0))?;
        out.write_all(&header)?;
        out.flush()?;
        Ok(samples)
    }

    /// Writes a sample with the call chain that perf has found.
    fn sample(&self, event: &Event<'_>, time: u64, chains: &mut Chains, out: &mut Vec<u8>) -> io::Result<()> {
        let Some((form, parts)) = self.form(event).and_then(|form| Some((form, form.parts(event.bytes)?))) else {
            return invalid("has a sample that is not whole");
        };
        let (pid, tid) = form.ids(event.bytes).unwrap_or((u32::MAX, u32::MAX));
        let found = chains.next((pid, tid, time));
        out.extend_from_slice(&event.bytes[..8]);
        out.extend_from_slice(&event.bytes[parts.before]);
        if form.has_chain() {
            let mut chain = parts.chain;
            if form.is_unwound {
                chain.truncate(of_kernel(&chain).len());
                chain.extend((!found.is_empty()).then_some(CONTEXT_USER));
                chain.extend(found);
            }
            out.extend((chain.len() as u64).to_ne_bytes());
            out.extend(chain.iter().flat_map(|address| address.to_ne_bytes()));
        }
        set_size(out)
    }
}

/// Copies an event. The path of a file in the bundle replaces the name of the vDSO, and of memory that has a perf map.
fn keep(event: &Event<'_>, chains: &Chains, out: &mut Vec<u8>) -> io::Result<()> {
    let renamed = user_mapping(event).filter(|_| event.misc() & misc::DATA == 0).and_then(|mapped| {
        let name = std::str::from_utf8(mapped.name).ok()?;
        let new = match chains.maps.get(&mapped.pid) {
            Some(&number) if is_memory(name) => map_path(number),
            _ if name == VDSO => VDSO_PATH.into(),
            _ => return None,
        };
        Some((mapped, new))
    });
    let Some((mapped, new)) = renamed else {
        out.extend_from_slice(event.bytes);
        return Ok(());
    };
    let start = mapped.name_at.start;
    out.extend_from_slice(&event.bytes[..start]);
    if new != VDSO_PATH {
        // The symbols of a perf map have addresses in memory.
        out[OFFSET..OFFSET + 8].copy_from_slice(&mapped.range.start.to_ne_bytes());
    }
    out.extend_from_slice(new.as_bytes());
    out.resize(start + (new.len() + 1).next_multiple_of(8), 0);
    out.extend_from_slice(&event.bytes[mapped.name_at.end..]);
    set_size(out)
}

/// The name of the vDSO in a recording, and its path in a bundle. perf searches for no file with the name of the recording.
pub const VDSO: &str = "[vdso]";
pub const VDSO_PATH: &str = "/vdso";

/// The path in a bundle of the symbols of a perf map. perf reads no file with this path as a perf map.
pub fn map_path(number: u32) -> String {
    format!("/jit/perf-{number}.map")
}

/// Returns an error if a signal should end the work.
fn go_on() -> io::Result<()> {
    match children::is_asked() {
        true => Err(io::ErrorKind::Interrupted.into()),
        false => Ok(()),
    }
}

fn set_size(event: &mut [u8]) -> io::Result<()> {
    let Ok(size) = u16::try_from(event.len()) else { return invalid("has an event that becomes too long") };
    event[6..8].copy_from_slice(&size.to_ne_bytes());
    Ok(())
}

/// Notes the build-id in an event or entry. The pair is the offset of its size, and the offset of its bytes.
fn add_build_id(all: &mut HashMap<String, Vec<u8>>, bytes: &[u8], (size, at): (usize, usize), name: &[u8]) {
    let len = usize::from(bytes.get(size).copied().unwrap_or(0)).min(20);
    if let Some(id) = bytes.get(at..at + len).filter(|id| !id.is_empty()) {
        all.entry(String::from_utf8_lossy(name).into_owned()).or_insert_with(|| id.to_vec());
    }
}
