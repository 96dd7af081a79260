//! Reads recordings of perf: the header, the attributes and the offsets of the sections.
//!
//! The format is described in linux tools/perf/Documentation/perf.data-file-format.txt. This project has its own reader,
//! because a copy must keep everything that it does not change. The crate `linux-perf-data` returns events in the order of
//! time and without their offsets, and reads sections into memory at the length that they claim. The crate `tracepoint_perf`
//! writes its own table of attributes, and only the first 32 of 256 features.

pub mod attributes;
pub mod compressed;
pub mod events;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use attributes::Attribute;
use events::{kind, Events};

/// Offsets in the header: the size of an attribute, the ranges of attributes, of events and of the oldest table of event
/// types, and the flags of the features after the events.
const ATTRIBUTE_SIZE: usize = 16;
pub const ATTRIBUTES: usize = 24;
pub const EVENTS: usize = 40;
pub const EVENTS_LEN: usize = 48;
pub const EVENT_TYPES: usize = 56;
pub const FEATURES: usize = 72;
pub const HEADER: usize = 104;
/// The header of a recording that perf has written to a pipe.
pub const PIPE_HEADER: usize = 16;
const MAGIC: &[u8] = b"PERFILE2";
const OTHER_ORDER: &[u8] = b"2ELIFREP";
/// The maximum size of an attribute. The kernel has the same limit, one page.
const ATTRIBUTE_MOST: u64 = 4096 + 16;
/// The maximum size of the ids of all attributes, in bytes. There is one id for each event and processor.
const IDS_MOST: u64 = 128 << 20;

/// Features, by the number of their flag (linux tools/perf/util/header.h).
pub mod feature {
    pub const BUILD_ID: u32 = 2;
    pub const AUXTRACE: u32 = 18;
    pub const COMPRESSED: u32 = 27;
}

pub fn invalid<T>(why: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    array_at(bytes, at).map_or(0, u16::from_ne_bytes)
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array_at(bytes, at).map_or(0, u32::from_ne_bytes)
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array_at(bytes, at).map_or(0, u64::from_ne_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Reads the header of a recording that is a file with all its sections.
pub fn file_header(file: &File) -> io::Result<[u8; HEADER]> {
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    if !header.starts_with(MAGIC) {
        return invalid("is no recording of perf of this machine");
    }
    Ok(header)
}

/// The parts of a recording.
#[derive(Debug)]
pub struct Layout {
    /// The header: [`HEADER`] bytes, or [`PIPE_HEADER`] bytes if perf has written to a pipe.
    pub header: Vec<u8>,
    pub events: Range<u64>,
    pub attributes: Vec<Attribute>,
    /// The numbers of the features, ascending, and their data.
    pub features: Vec<(u32, Range<u64>)>,
    /// The length of the file when it was opened.
    pub len: u64,
}

impl Layout {
    pub fn read(file: &File) -> io::Result<Layout> {
        let len = file.metadata()?.len();
        let mut start = [0; PIPE_HEADER];
        if file.read_exact_at(&mut start, 0).is_err() || !(start.starts_with(MAGIC) || start.starts_with(OTHER_ORDER)) {
            return invalid("is no recording of perf");
        }
        if start.starts_with(OTHER_ORDER) {
            return invalid("is a recording of a machine with the other byte order");
        }
        match u64_at(&start, 8) {
            size if size == PIPE_HEADER as u64 => of_pipe(file, start.to_vec(), len),
            size if size == HEADER as u64 => of_file(file, len),
            _ => invalid("is a recording of an unknown version of perf"),
        }
    }

    pub fn is_pipe(&self) -> bool {
        self.header.len() == PIPE_HEADER
    }

    /// The range of the data of a feature, if the recording has the feature.
    pub fn feature(&self, number: u32) -> Option<Range<u64>> {
        self.features.iter().find(|(there, _)| *there == number).map(|(_, place)| place.clone())
    }

    /// The end of the table with the ranges of the features. The table begins where the events end.
    pub fn table_end(&self) -> u64 {
        self.events.end + 16 * self.features.len() as u64
    }
}

/// A range in the file that a header or table contains as offset and length.
fn place(bytes: &[u8], at: usize, len: u64) -> io::Result<Range<u64>> {
    let (start, size) = (u64_at(bytes, at), u64_at(bytes, at + 8));
    match start.checked_add(size).filter(|&end| end <= len) {
        Some(end) => Ok(start..end),
        None => invalid("is cut: it names a part behind its end"),
    }
}

fn of_file(file: &File, len: u64) -> io::Result<Layout> {
    let header = file_header(file)?;
    let events = place(&header, EVENTS, len)?;
    if events.is_empty() {
        return invalid("was not finished: was perf killed while it wrote the recording?");
    }
    if events.start < HEADER as u64 {
        return invalid("has its events in the header");
    }
    let (size, all) = (u64_at(&header, ATTRIBUTE_SIZE), place(&header, ATTRIBUTES, len)?);
    if !(64 + 16..=ATTRIBUTE_MOST).contains(&size) || (all.end - all.start) < size {
        return invalid("has no attributes of events");
    }
    let (mut attributes, mut ids_left) = (Vec::new(), IDS_MOST.min(len));
    for at in (all.start..=all.end - size).step_by(size as usize) {
        let mut bytes = vec![0; size as usize];
        file.read_exact_at(&mut bytes, at)?;
        let own = bytes.len() - 16;
        let ids = place(&bytes, own, len)?;
        match ids_left.checked_sub(ids.end - ids.start) {
            Some(left) => ids_left = left,
            None => return invalid("has more identifiers of events than there can be"),
        }
        let mut attribute = Attribute::read(&bytes[..own], &ids_of(file, ids.clone())?);
        attribute.ids_at = Some(ids);
        attributes.push(attribute);
    }
    let numbers = (0..256u32).filter(|&number| header[FEATURES + number as usize / 8] & 1 << (number % 8) != 0);
    let mut features = Vec::new();
    for (at, number) in numbers.enumerate() {
        let mut entry = [0; 16];
        let entry_at = events.end + 16 * at as u64;
        if file.read_exact_at(&mut entry, entry_at).is_err() {
            return invalid("is cut: the table of its features is missing");
        }
        features.push((number, place(&entry, 0, len)?));
    }
    Ok(Layout { header: header.to_vec(), events, attributes, features, len })
}

/// The ids of an attribute.
fn ids_of(file: &File, place: Range<u64>) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; (place.end - place.start) as usize];
    file.read_exact_at(&mut bytes, place.start)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Reads the layout of a recording from a pipe. Such a recording has its attributes in events, which precede the events of
/// the kernel.
fn of_pipe(file: &File, header: Vec<u8>, len: u64) -> io::Result<Layout> {
    let mut layout =
        Layout { header, events: PIPE_HEADER as u64..len, attributes: Vec::new(), features: Vec::new(), len };
    let mut events = Events::new(file, &layout)?;
    let mut attributes = Vec::new();
    while let Some(event) = events.next_event()? {
        match event.kind() {
            kind::HEADER_ATTR => {
                let size = match u32_at(event.bytes, 12) {
                    0 => 64,
                    size => size as usize,
                };
                let Some((attribute, ids)) = event.bytes.get(8..).and_then(|rest| rest.split_at_checked(size)) else {
                    return invalid("has an attribute that is not whole");
                };
                let ids: Vec<u64> = ids.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                attributes.push(Attribute::read(attribute, &ids));
            }
            number if number < kind::FIRST_OF_USER => break,
            _ => {}
        }
    }
    if attributes.is_empty() {
        return invalid("has no attributes of events");
    }
    layout.attributes = attributes;
    Ok(layout)
}
