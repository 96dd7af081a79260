//! Names of the files of regions, of their epochs, and of the files that forked children get.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Prefix of the names of files whose loaded segment begins at the code.
const AT_CODE: &str = "jitted-";

/// What the file of a process with this pid and number is called; `rest` is of an epoch, or of a child.
pub fn file_name((pid, number): (u32, u32), rest: &str, begins_at_code: bool) -> OsString {
    match begins_at_code {
        true => format!("{AT_CODE}{pid}-r{number}{rest}.so"),
        false => format!("jit-{pid}-{number}{rest}.so"),
    }
    .into()
}

/// Whether the loaded segment of a file of this name begins at the code, and not with the file.
pub fn begins_at_code(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(AT_CODE.as_bytes())
}

/// Whether files in a directory may begin at their code for perf 7.
pub fn can_begin_at_code(dir: &Path) -> bool {
    dir == Path::new("/tmp")
}

/// What a child's file is called, which it has until its first call.
pub fn name_for_child(child: u32, (parent, number): (u32, u32), begins_at_code: bool) -> OsString {
    file_name((child, number), &format!(".f{parent}"), begins_at_code)
}

/// The child whose file has this name.
pub fn child_of(name: &OsStr, parent: u32) -> Option<u32> {
    let text = name.to_str()?.strip_suffix(&format!(".f{parent}.so"))?;
    text.strip_prefix("jit-").or_else(|| text.strip_prefix(AT_CODE))?.split_once('-')?.0.parse().ok()
}

/// The beginnings of all names of files of a process, after their directories.
pub fn beginnings(pid: u32) -> [String; 2] {
    [format!("/jit-{pid}-"), format!("/{AT_CODE}{pid}-r")]
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
