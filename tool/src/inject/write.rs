//! Writes a copy of the recording, with the mappings of objects at their times.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use super::cover::Covers;
use super::regions::Replaced;
use super::survey::{is_memory_or_heap, Survey};
use crate::objects::{Mapping, Object};
use crate::perf_data::attributes::Forms;
use crate::perf_data::events::{kind, misc, user_mapping, Events, OFFSET};
use crate::perf_data::{feature, invalid, u64_at, Layout, ATTRIBUTES, EVENTS, EVENTS_LEN, EVENT_TYPES, FEATURES};

/// Names in the table of build-ids have this alignment.
const NAME_ALIGN: usize = 64;

/// The offsets of the address and the length in the event of a mapping.
const START: usize = 16;
const LEN: usize = 24;
/// The maximum number of parts of mappings that are written. A recording can have many mappings, and much code in each
/// mapping.
const PARTS_MOST: usize = 1 << 16;

/// A mapping to insert.
#[derive(Clone, Copy, Debug)]
pub struct Insert {
    pub pid: u32,
    pub mapping: Mapping,
}

/// The contents of the new recording.
pub struct New<'a> {
    /// Ascending by time.
    pub inserts: Vec<Insert>,
    pub objects: &'a [Object],
    pub covers: Covers<'a>,
    pub survey: &'a Survey,
    /// Mappings that are replaced by the objects.
    pub replaced: Replaced<'a>,
}

/// Copies the recording `file` to `out`.
pub fn write(
    file: &File,
    layout: &Layout,
    forms: &Forms<'_>,
    new: &New<'_>,
    out: &File,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 18, out);
    copy(file, 0..layout.events.start, &mut out)?;
    let mut at = layout.events.start;
    let mut moved = Vec::new();
    let mut inserts = new.inserts.iter().peekable();
    let (mut shown, mut parts_left) = (Shown::default(), PARTS_MOST);
    Events::new(file, layout)?.each(progress, &mut |event| {
        let time = forms.time(event);
        // perf handles the events of a round when the next round ends, in the order of time. An event is inserted before the
        // first event that is not older. Then it is not too old for its round, and not newer than all other events of the
        // round.
        while let Some(insert) = time.and_then(|time| inserts.next_if(|insert| insert.mapping.time <= time)) {
            at += put(new, insert, forms, &mut shown, &mut out)?;
        }
        let until = time.unwrap_or(u64::MAX);
        match user_mapping(event) {
            // A mapping of memory would hide the objects, so only its parts without objects are kept.
            Some(mapped) if is_memory_or_heap(mapped.name) && new.covers.has_code(mapped.pid, &mapped.range, until) => {
                let parts = new.covers.gaps(mapped.pid, &mapped.range, until);
                let Some(left) = parts_left.checked_sub(parts.len()) else { return Ok(()) };
                parts_left = left;
                for part in parts {
                    out.write_all(&part_of(event.bytes, &mapped.range, &part))?;
                    at += event.bytes.len() as u64;
                }
                return Ok(());
            }
            Some(mapped)
                if std::str::from_utf8(mapped.name).is_ok_and(|name| new.replaced.contains(&(mapped.pid, name))) =>
            {
                return Ok(());
            }
            _ => {}
        }
        if event.kind() == kind::AUXTRACE {
            moved.push((event.offset, at));
        }
        out.write_all(event.bytes)?;
        let behind = event.behind.clone();
        at += event.bytes.len() as u64 + (behind.end - behind.start);
        copy(file, behind, &mut out)
    })?;
    for insert in inserts {
        at += put(new, insert, forms, &mut shown, &mut out)?;
    }
    if layout.is_pipe() {
        return out.flush();
    }
    let events = layout.events.start..at;
    sections(file, layout, new, &events, &moved, &mut out)?;
    out.flush()
}

/// The event of a mapping, for a part of the mapping.
fn part_of(event: &[u8], whole: &Range<u64>, part: &Range<u64>) -> Vec<u8> {
    let mut event = event.to_vec();
    let offset = u64_at(&event, OFFSET).wrapping_add(part.start - whole.start);
    for (at, value) in [(START, part.start), (LEN, part.end - part.start), (OFFSET, offset)] {
        event[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    }
    event
}

/// Copies a part of a file.
fn copy(file: &File, part: Range<u64>, out: &mut impl Write) -> io::Result<()> {
    if part.is_empty() {
        return Ok(());
    }
    let (mut at, mut buffer) = (part.start, vec![0; 1 << 16]);
    while at < part.end {
        let len = (part.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..len], at)?;
        out.write_all(&buffer[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Objects and processes whose mappings are written.
#[derive(Default)]
struct Shown {
    objects: HashSet<usize>,
    pids: HashSet<u32>,
}

/// Writes the event of a mapping, and returns its length. If the process has had other objects, this function first writes
/// the event of the process's name, as if the process had executed a program. libunwind then clears its cache of how it has
/// unwound at each address. The event has no other effect.
fn put(new: &New<'_>, insert: &Insert, forms: &Forms<'_>, shown: &mut Shown, out: &mut impl Write) -> io::Result<u64> {
    let Insert { pid, mapping } = insert;
    let Some(object) = new.objects.get(mapping.object) else { return Ok(0) };
    let is_later = shown.objects.insert(mapping.object) && !shown.pids.insert(*pid);
    let name = new.survey.name(*pid, mapping.time).filter(|_| is_later);
    let named = match name {
        Some(name) => {
            let mut event = Vec::with_capacity(64);
            event.extend(kind::COMM.to_ne_bytes());
            event.extend([misc::COMM_EXEC, 0].map(u16::to_ne_bytes).concat());
            event.extend([*pid, *pid].map(u32::to_ne_bytes).concat());
            event.extend(name);
            event.resize((event.len() + 1).next_multiple_of(8), 0);
            finish(event, *pid, mapping.time, forms, out)?
        }
        None => 0,
    };
    let mut event = Vec::with_capacity(256);
    event.extend(kind::MMAP2.to_ne_bytes());
    event.extend([misc::MODE_USER | misc::HAS_BUILD_ID, 0].map(u16::to_ne_bytes).concat());
    event.extend([*pid, *pid].map(u32::to_ne_bytes).concat());
    event.extend([mapping.start, mapping.len, mapping.offset].map(u64::to_ne_bytes).concat());
    event.extend([object.build_id.len() as u8, 0, 0, 0]);
    event.extend(object.build_id);
    event.extend([libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE].map(i32::to_ne_bytes).concat());
    event.extend(object.path.as_os_str().as_bytes());
    event.resize((event.len() + 1).next_multiple_of(8), 0);
    Ok(named + finish(event, *pid, mapping.time, forms, out)?)
}

/// Completes an event, writes it, and returns its length.
fn finish(mut event: Vec<u8>, pid: u32, time: u64, forms: &Forms<'_>, out: &mut impl Write) -> io::Result<u64> {
    event.extend(forms.end_of_event(pid, time));
    let Ok(size) = u16::try_from(event.len()) else { return invalid("needs too long a path for its objects") };
    event[6..8].copy_from_slice(&size.to_ne_bytes());
    out.write_all(&event)?;
    Ok(size.into())
}

/// The entry of an object in the table of build-ids.
fn build_id(object: &Object) -> io::Result<Vec<u8>> {
    let name = object.path.as_os_str().as_bytes();
    let mut entry = vec![0; 4];
    entry.extend([misc::MODE_USER | misc::HAS_SIZE, 0].map(u16::to_ne_bytes).concat());
    // The pid of this machine, which perf needs for guests.
    entry.extend((-1i32).to_ne_bytes());
    entry.extend(object.build_id);
    entry.extend([object.build_id.len() as u8, 0, 0, 0]);
    entry.extend(name);
    let len = 36 + (name.len() + 1).next_multiple_of(NAME_ALIGN);
    entry.resize(len, 0);
    let Ok(size) = u16::try_from(len) else { return invalid("needs too long a path for its objects") };
    entry[6..8].copy_from_slice(&size.to_ne_bytes());
    Ok(entry)
}

/// The offsets in the new file of the parts after the events.
struct Shift {
    events: Range<u64>,
    new_end: u64,
    table_end: u64,
    new_table_end: u64,
    /// The end of the table of build-ids, and how much this table grows.
    build_ids: Option<(u64, u64)>,
}

impl Shift {
    fn place(&self, at: u64) -> u64 {
        let grown = self.build_ids.filter(|&(end, _)| at >= end).map_or(0, |(_, grown)| grown);
        match at {
            // An offset after the end of the file is possible, because readers ignore the event types.
            _ if at >= self.table_end => (at - self.table_end).wrapping_add(self.new_table_end).wrapping_add(grown),
            _ if at >= self.events.end => at - self.events.end + self.new_end,
            _ => at,
        }
    }
}

/// Writes the part after the events, and corrects all offsets of moved parts.
fn sections(
    file: &File,
    layout: &Layout,
    new: &New<'_>,
    events: &Range<u64>,
    moved: &[(u64, u64)],
    out: &mut BufWriter<&File>,
) -> io::Result<()> {
    // The events are no longer compressed.
    let kept = |number: u32| number != feature::COMPRESSED;
    let table_len = 16 * layout.features.iter().filter(|(number, _)| kept(*number)).count() as u64;
    let mut entries = Vec::new();
    for object in new.objects {
        entries.extend(build_id(object)?);
    }
    let table = layout.feature(feature::BUILD_ID).filter(|place| place.start >= layout.table_end());
    // The table cannot grow into a part that overlaps it.
    let is_apart = |end: u64| layout.features.iter().all(|(_, other)| end <= other.start || end >= other.end);
    let table = table.filter(|place| !place.is_empty() && !entries.is_empty() && is_apart(place.end));
    let shift = Shift {
        events: layout.events.clone(),
        new_end: events.end,
        table_end: layout.table_end(),
        new_table_end: events.end + table_len,
        build_ids: table.as_ref().map(|place| (place.end, entries.len() as u64)),
    };
    for (number, place) in layout.features.iter().filter(|(number, _)| kept(*number)) {
        let grown = if *number == feature::BUILD_ID && table.is_some() { entries.len() as u64 } else { 0 };
        out.write_all(&shift.place(place.start).to_ne_bytes())?;
        out.write_all(&(place.end - place.start + grown).to_ne_bytes())?;
    }
    match &table {
        Some(place) => {
            copy(file, layout.table_end()..place.end, out)?;
            out.write_all(&entries)?;
            copy(file, place.end..layout.len, out)?;
        }
        None => copy(file, layout.table_end()..layout.len, out)?,
    }
    out.flush()?;
    let out: &File = out.get_ref();
    index(file, layout, &shift, moved, out)?;
    let mut header = layout.header.clone();
    let mut set = |at: usize, value: u64| header[at..at + 8].copy_from_slice(&value.to_ne_bytes());
    set(EVENTS, events.start);
    set(EVENTS_LEN, events.end - events.start);
    for at in [ATTRIBUTES, EVENT_TYPES] {
        set(at, shift.place(u64_at(&layout.header, at)));
    }
    header[FEATURES + feature::COMPRESSED as usize / 8] &= !(1 << (feature::COMPRESSED % 8));
    out.write_all_at(&header, 0)?;
    // The ids of an attribute can also follow the events: perf writes them there when it reads from a pipe.
    let (start, size) = (u64_at(&layout.header, ATTRIBUTES), u64_at(&layout.header, 16));
    for (number, attribute) in layout.attributes.iter().enumerate() {
        let entry = start + size * number as u64 + size - 16;
        if let Some(ids) = attribute.ids_at.as_ref().filter(|ids| shift.place(ids.start) != ids.start) {
            out.write_all_at(&shift.place(ids.start).to_ne_bytes(), shift.place(entry))?;
        }
    }
    Ok(())
}

/// Corrects the index of AUX data, which contains offsets of events.
fn index(file: &File, layout: &Layout, shift: &Shift, moved: &[(u64, u64)], out: &File) -> io::Result<()> {
    let Some(place) = layout.feature(feature::AUXTRACE).filter(|place| place.start >= layout.table_end()) else {
        return Ok(());
    };
    // The index has the number of entries, and an offset and a size for each entry.
    let mut at = place.start + 8;
    while at + 16 <= place.end {
        let mut offset = [0; 8];
        file.read_exact_at(&mut offset, at)?;
        let offset = u64::from_ne_bytes(offset);
        if let Ok(found) = moved.binary_search_by_key(&offset, |&(old, _)| old) {
            out.write_all_at(&moved[found].1.to_ne_bytes(), shift.place(at))?;
        }
        at += 16;
    }
    Ok(())
}
