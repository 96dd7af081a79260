//! Makes ELF files of the code in jitdumps and perf maps. There is one file for each part of the address space and each time
//! in which no code is replaced there ([`Epochs`]). So the number of files does not grow with the number of functions.

mod debug;
mod elf;
mod epochs;
mod frames;
mod inlined;
mod loads;
mod newest;
mod out_dir;
mod ranges;
mod taken;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use elf::{Image, Layout};
use frames::Tables;
use jitsym::format::file_names::is_pid;

pub(crate) use debug::name_of;
pub(crate) use elf::Sections;
pub use epochs::{few_files, Epoch, Epochs, LeftOut, FILES_MAX, GAP_MAX};
pub use loads::{is_32_bit, Load, Loads};
pub use out_dir::OutDir;
pub(crate) use ranges::Ranges;
pub use taken::Taken;

/// A mapping to announce in a recording. From `time` on, the addresses from `start` to `start + len` of the process are the
/// bytes of `object` from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The time, by the clock of the jitdump.
    pub time: u64,
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
    /// Index in [`Made::objects`].
    pub object: usize,
    /// The offset in the file.
    pub offset: u64,
}

/// An ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// The path of the file.
    pub path: PathBuf,
    /// The build ID, which is also in the file.
    pub build_id: [u8; 20],
    /// The addresses of the neighbourhood, from the first to the last byte.
    pub code: Range<u64>,
    /// The time at which code of this file was used first.
    pub time: u64,
    /// The address of the file's first byte, modulo 2^64.
    pub origin: u64,
    /// The number of pieces of code.
    pub pieces: usize,
}

/// All files, and their mappings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The files.
    pub objects: Vec<Object>,
    /// Ascending by time. An object's tables, if they have addresses, are mapped before its code.
    pub mappings: Vec<Mapping>,
}

/// Writes an object for each epoch of a process into `dir`. `taken` has the addresses that a recording maps. The addresses of
/// each object's tables are different from those of all code, libraries, and other tables. If `taken` is `None`, the tables
/// have no mappings. Fails if a file cannot be written, or if the code is of a 32-bit machine or of another byte order.
pub fn write(loads: &Loads<'_>, epochs: &[Epoch], dir: &OutDir, taken: Option<&Taken>) -> io::Result<Made> {
    loads.check_machine()?;
    let mut taken = taken.cloned();
    // For each neighbourhood, the number of its epochs, and the number of epochs that are not written yet.
    let mut counts: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for epoch in epochs {
        let range = &epoch.neighbourhood;
        let (count, left) = counts.entry((range.start, range.end)).or_default();
        (*count, *left) = (*count + 1, *left + 1);
        taken.iter_mut().for_each(|taken| taken.add(range.clone()));
    }
    let mut made = Made::default();
    for epoch in epochs {
        let code = &epoch.neighbourhood;
        let Some((count, left)) = counts.get_mut(&(code.start, code.end)) else { continue };
        *left = left.saturating_sub(1);
        let mut layout = Layout::new(code, *count, *left, taken.is_some());
        let mut pieces: Vec<&Load<'_>> = epoch.pieces.iter().filter_map(|&index| loads.all.get(index)).collect();
        pieces.sort_unstable_by_key(|load| load.addr);
        let mut tables = Tables::new(loads.machine, pieces.iter().copied());
        tables.always = taken.is_some();
        let size = elf::size_in_memory(&tables);
        let place = taken.as_mut().filter(|_| size > 0).and_then(|taken| {
            let limit = layout.origin.saturating_add(DISTANCE_MAX);
            let at = taken.free_above(code.end, size, limit, loads.machine)?;
            taken.add(at..at.saturating_add(size));
            Some(at)
        });
        if let Some(at) = place {
            (layout.tables_at, layout.are_mapped) = (at.wrapping_sub(layout.origin), true);
        }
        let image = Image::new(loads.machine, &pieces, &layout, tables);
        let (object, time) = (made.objects.len(), epoch.time);
        if let Some(start) = place.filter(|_| image.has_tables) {
            let (len, offset) = (size.next_multiple_of(taken::PAGE), layout.tables_at);
            made.mappings.push(Mapping { time, start, len, object, offset });
        }
        for Range { start, end } in mapped(code, &pieces, &epoch.unknown) {
            let offset = start.wrapping_sub(layout.origin);
            made.mappings.push(Mapping { time, start, len: end - start, object, offset });
        }
        let name = name(loads.pid, &image.build_id);
        let path = match dir.has(&name, image.len(), image.head()) {
            true => dir.path().join(&name),
            false => dir.put(&name, |file| image.write(file))?,
        };
        let (build_id, code, origin) = (image.build_id, code.clone(), layout.origin);
        made.objects.push(Object { path, build_id, code, time, origin, pieces: pieces.len() });
    }
    made.mappings.sort_by_key(|mapping| mapping.time);
    Ok(made)
}

/// The parts of a neighbourhood that are mapped. Only gaps between pieces that contain addresses of unknown code are not
/// mapped. `pieces` are in ascending order of address.
fn mapped(code: &Range<u64>, pieces: &[&Load<'_>], unknown: &[u64]) -> Vec<Range<u64>> {
    let mut unknown = unknown.to_vec();
    unknown.sort_unstable();
    let mut mapped = Vec::new();
    // perf finds unwind tables by the distance from the first mapping, so the first mapping begins where the neighbourhood
    // begins.
    let (mut start, mut end) = (code.start, code.start.saturating_add(1));
    let after = std::iter::once(code.end..code.end);
    for next in pieces.iter().map(|load| load.range()).chain(after) {
        let first = unknown.partition_point(|&addr| addr < end);
        if unknown.get(first).is_some_and(|&addr| addr < next.start) {
            mapped.push(start..end);
            start = next.start;
        }
        end = end.max(next.end);
    }
    mapped.push(start..end);
    mapped.retain(|part| !part.is_empty());
    mapped
}

/// The name of an object.
fn name(pid: u32, build_id: &[u8]) -> String {
    let hex: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("jitcode-{pid}-{hex}.so")
}

/// The process whose code is in an object with this name.
pub fn pid_of(name: &str) -> Option<u32> {
    let (pid, id) = name.strip_prefix("jitcode-")?.strip_suffix(".so")?.split_once('-')?;
    let is_id = id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    pid.parse().ok().filter(|&pid| is_id && is_pid(pid))
}

/// The maximum distance between the first byte of a file and the last byte of its tables. The distance between tables and code
/// has 31 bits with a sign.
const DISTANCE_MAX: u64 = 0x7fff_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_code_is_not_covered() {
        let loads: Vec<Load<'_>> = [100..110, 120..130, 130..140]
            .map(|at| Load { addr: at.start, size: at.end - at.start, ..Load::default() })
            .to_vec();
        let pieces: Vec<&Load<'_>> = loads.iter().collect();
        let parts = |code, pieces: &[&Load<'_>], unknown: &[u64]| mapped(&code, pieces, unknown);
        assert_eq!(parts(100..150, &pieces, &[]), std::slice::from_ref(&(100..150)));
        assert_eq!(parts(100..150, &pieces, &[145, 111, 112]), [100..110, 120..140]);
        assert_eq!(
            parts(100..150, &pieces, &[99, 150, 125]),
            std::slice::from_ref(&(100..150)),
            "these have names, or no object"
        );
        assert_eq!(parts(90..150, &pieces[1..2], &[111, 149]), [90..91, 120..130], "the first mapping stays");
        assert_eq!(parts(0..u64::MAX, &[], &[5]), std::slice::from_ref(&(0..1)));
    }

    #[test]
    fn names_tell_the_process() {
        let name = name(17, &[0xab; 20]);
        assert_eq!((pid_of(&name), &*name), (Some(17), "jitcode-17-abababababababababababababababababababab.so"));
        for other in ["jitcode-17-ab.so", "jitted-17-1.so", &name[..name.len() - 3], &name.replace("17", "x")] {
            assert_eq!(pid_of(other), None, "{other}");
        }
    }
}
