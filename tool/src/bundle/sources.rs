//! Reads the source files in the line tables of compiled code.
//!
//! A program can write any name into its line tables, even the name of a file with secrets. So a file is read only if it is
//! text, is not hidden, and can be read by this user even without being root. The names of all files in the bundle are
//! printed.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use jitsym::sys::process;

use crate::open;

/// The maximum number of files, the maximum size of a file, and the maximum size of all files.
const FILES_MAX: usize = 1000;
const FILE_MAX: u64 = 1 << 20;
const BYTES_MAX: u64 = 64 << 20;
/// The mode of a file that all users may read.
const FOR_ALL: u32 = 0o004;

/// Passes the path and the contents of each file to `each`.
pub fn read<E>(paths: &BTreeSet<String>, mut each: impl FnMut(&str, &[u8]) -> Result<(), E>) -> Result<(), E> {
    let (mut files_left, mut bytes_left) = (FILES_MAX, BYTES_MAX);
    for path in paths {
        let Some(contents) = contents(path).filter(|contents| contents.len() as u64 <= bytes_left) else { continue };
        if files_left == 0 {
            break;
        }
        files_left -= 1;
        bytes_left -= contents.len() as u64;
        each(path, &contents)?;
    }
    Ok(())
}

fn contents(path: &str) -> Option<Vec<u8>> {
    let mut parts = Path::new(path).components();
    let is_plain = parts.all(|part| match part {
        Component::RootDir => true,
        Component::Normal(name) => !name.as_encoded_bytes().starts_with(b"."),
        _ => false,
    });
    if !is_plain || !leads_here(Path::new(path)) {
        return None;
    }
    let file = open::unlinked(Path::new(path)).ok()?;
    let data = file.metadata().ok()?;
    if !may_take(&data, process::user()) || data.len() > FILE_MAX {
        return None;
    }
    let mut contents = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut contents).ok()?;
    let is_text = std::str::from_utf8(&contents).is_ok_and(|text| !text.contains('\0'));
    (is_text && contents.len() as u64 <= FILE_MAX).then_some(contents)
}

/// Whether no directory of the path is a link to a hidden directory.
fn leads_here(path: &Path) -> bool {
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let base = Path::new(if path.is_relative() { "." } else { "/" });
    let (Ok(dir), Ok(base)) = (fs::canonicalize(dir), fs::canonicalize(base)) else { return false };
    let is_hidden = |part: Component<'_>| part.as_os_str().as_encoded_bytes().starts_with(b".");
    dir.strip_prefix(base).is_ok_and(|rest| !rest.components().any(is_hidden))
}

/// Whether this user may read the file without being root.
fn may_take(data: &Metadata, user: u32) -> bool {
    data.mode() & FOR_ALL != 0 || user != 0 && data.uid() == user
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private::PrivateDir;
    use std::os::unix::fs::{symlink, PermissionsExt};

    #[test]
    fn only_text_that_is_not_secret() {
        let dir = PrivateDir::new(&std::env::temp_dir(), "jitsym-sources-").unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, contents: &[u8]| {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), contents).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o644)).unwrap();
        };
        for name in ["good.js", ".hidden/key", ".netrc", "d/other.js"] {
            write(name, b"text");
        }
        write("binary", b"\x7fELF\0");
        write("not-utf-8", b"\xff");
        write("large", &vec![b'a'; FILE_MAX as usize + 1]);
        symlink(path("good.js"), path("link.js")).unwrap();
        symlink(path(".hidden"), path("shown")).unwrap();
        let names = ["good.js", ".hidden/key", ".netrc", "d/other.js", "binary", "not-utf-8", "large", "link.js"];
        let all = names.iter().chain(&["shown/key", "d", "d/../good.js", "missing"]);
        let paths: BTreeSet<String> =
            all.map(|name| path(name).display().to_string()).chain(["/dev/zero".into()]).collect();
        let mut found = Vec::new();
        let _ = read(&paths, |path, contents| {
            assert_eq!(contents, b"text");
            found.push(path.to_owned());
            Ok::<_, ()>(())
        });
        assert_eq!(found, [path("d/other.js"), path("good.js")].map(|path| path.display().to_string()));
        fs::set_permissions(path("good.js"), fs::Permissions::from_mode(0o600)).unwrap();
        let data = fs::metadata(path("good.js")).unwrap();
        assert!(
            !may_take(&data, 0)
                && !may_take(&data, data.uid() + 1)
                && may_take(&data, data.uid().max(1)) == (data.uid() != 0)
        );
    }
}
