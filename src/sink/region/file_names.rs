//! Makes and parses the names of region files, of their epochs, and of the files of forked children.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::format::file_names::{parse, FileKind};

/// The name of a region's file in an epoch. `number` is the number of the region. The first epoch is 0.
pub fn file_name((pid, number): (u32, u32), epoch: u32, begins_at_code: bool) -> OsString {
    FileKind::Region { number, begins_at_code, epoch, parent: 0 }.name(pid).into()
}

/// Whether the loaded segment of a file with this name begins at the code. Otherwise the segment begins at the start of the
/// file.
pub fn begins_at_code(name: &OsStr) -> bool {
    matches!(parse(name), Some((_, FileKind::Region { begins_at_code: true, .. })))
}

/// Whether the loaded segments of files in this directory may begin at the code: see `Region::can_begin_at_code`.
pub fn can_begin_at_code(dir: &Path) -> bool {
    dir == Path::new("/tmp")
}

/// The name of the file that a forked child has until it first calls the library.
pub fn name_for_child(child: u32, (parent, number): (u32, u32), begins_at_code: bool) -> OsString {
    FileKind::Region { number, begins_at_code, epoch: 0, parent }.name(child).into()
}

/// If `name` is the name of a file for a forked child of `parent`, returns the pid of the child.
pub fn child_of(name: &OsStr, parent: u32) -> Option<u32> {
    match parse(name)? {
        (child, FileKind::Region { parent: of, .. }) if of == parent => Some(child),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_child_it_is() {
        for begins_at_code in [false, true] {
            let name = name_for_child(17, (4711, 3), begins_at_code);
            assert_eq!(child_of(&name, 4711), Some(17), "{name:?}");
            assert_eq!(child_of(&name, 711), None);
        }
        for name in ["jit-17-3.so", "jit-17-3.4711.so", "jit-17.f4711.so", "perf-17.f4711.so", "jit-x-3.f4711.so"] {
            assert_eq!(child_of(OsStr::new(name), 4711), None, "{name}");
        }
    }
}
