//! Makes ELF files of the code in jitdumps and perf maps: one file for each part of the address space and each use of this part.
//!
//! Code that lies close together shares a file, as the functions of a library do. In such a *neighbourhood*, a piece of code
//! goes to the first file in which its addresses are still free. So the first file has the first code at each address, the
//! second file has the code that replaced it, and so on. The number of files does not grow with the number of functions.
//!
//! In each file, addresses are file offsets, and the distance between two parts is the same in the file as in memory. Both are
//! what unwinders assume.

mod debug;
mod elf;
mod frames;
mod layers;
mod loads;
mod mappings;
mod newest;
mod out_dir;
mod ranges;
mod taken;

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use elf::{Image, Layout};
use frames::Tables;

pub use loads::{Load, Loads};
pub use out_dir::OutDir;
pub use taken::Taken;

/// A mapping to announce in a recording: from `time` on, the addresses from `start` to `start + len` of the process are the
/// bytes of `object` from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// By the clock of the jitdump.
    pub time: u64,
    /// The first address.
    pub start: u64,
    /// The number of bytes.
    pub len: u64,
    /// Index in [`Made::objects`].
    pub object: usize,
    /// The place in the file.
    pub offset: u64,
}

/// An ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Where the file is.
    pub path: PathBuf,
    /// The same as in the file.
    pub build_id: [u8; 20],
    /// The addresses of the code, from the first to the last byte.
    pub code: Range<u64>,
    /// The address of the file's first byte, modulo 2^64.
    pub origin: u64,
    /// The number of pieces of code.
    pub pieces: usize,
}

/// All files, and how they lie in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The files.
    pub objects: Vec<Object>,
    /// Ascending by time.
    pub mappings: Vec<Mapping>,
    /// The number of pieces that are in no file, because there are too many files already.
    pub left_out: usize,
}

/// Writes the objects of one process into `dir`. The loads are sorted by time. `taken` has the addresses that a recording maps,
/// so that the unwind tables get other addresses. If `taken` is `None`, the tables lie right below the code.
pub fn make(loads: &Loads<'_>, dir: &OutDir, taken: Option<&Taken>) -> io::Result<Made> {
    let layers = layers::distribute(&loads.all);
    let mut taken = taken.cloned();
    if let Some(taken) = &mut taken {
        loads.all.iter().for_each(|load| taken.add(load.addr..load.addr.saturating_add(load.size)));
    }
    let mut made = Made { left_out: layers.of.iter().filter(|of| of.is_none()).count(), ..Made::default() };
    let mut tables_of = Vec::new();
    for layer in &layers.all {
        let pieces: Vec<&Load<'_>> = layer.pieces.iter().filter_map(|&index| loads.all.get(index)).collect();
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { continue };
        let code = first.addr..last.addr.saturating_add(last.size);
        let tables = Tables::new(loads.machine, pieces.iter().copied());
        let layout = layout(&code, elf::size_in_memory(&tables), taken.as_mut());
        let image = Image::new(loads.machine, &pieces, &layout, tables);
        tables_of.push(image.tables);
        let hex: String = image.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("jitcode-{}-{hex}.so", loads.pid);
        let path = match dir.has(&name, image.len(), image.head()) {
            true => dir.path().join(&name),
            false => dir.put(&name, |file| image.write(file))?,
        };
        let (build_id, origin, pieces) = (image.build_id, layout.origin, pieces.len());
        made.objects.push(Object { path, build_id, code, origin, pieces });
    }
    made.mappings = mappings::all(&loads.all, &layers, &made.objects, &tables_of);
    Ok(made)
}

/// Chooses the place of the tables, which take `size` bytes in memory, and marks the place as used.
fn layout(code: &Range<u64>, size: u64, taken: Option<&mut Taken>) -> Layout {
    let close = Layout::close(code.start, size);
    let Some(taken) = taken else { return close };
    // The distance from the tables to each piece of code has 31 bits with a sign.
    let window = code.end.saturating_sub(DISTANCE_MAX)..code.start.saturating_add(DISTANCE_MAX);
    match taken.free_near(code.start / taken::PAGE * taken::PAGE, size, window) {
        Some(at) => {
            taken.add(at..at.saturating_add(size));
            Layout::new(code.start, at)
        }
        None => close,
    }
}

/// The maximum distance between the first byte of tables and the last byte of code, or the reverse. This leaves room for the
/// sizes of tables.
const DISTANCE_MAX: u64 = 0x7000_0000;
