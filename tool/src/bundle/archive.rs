//! Writes and reads the file of a bundle: a tar archive, compressed by gzip, with regular files below one directory.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use flate2::Compression;
use tar::{Archive, Builder, EntryType, Header};

use crate::perf_data::invalid;

/// The directory of all files in a bundle.
pub const TOP: &str = "jitsym-bundle";
/// The first bytes of a file that is compressed by gzip.
pub const GZIP: &[u8] = b"\x1f\x8b";
/// The maximum number of bytes of all files of a bundle, and the maximum number of files.
const BYTES_MAX: u64 = 4 << 30;
const FILES_MAX: usize = 100_000;
/// The maximum number of bytes that a tar archive has for a file in addition to the file itself.
const PER_FILE: u64 = 1024;

/// A bundle that is being written.
pub struct Writer<'f> {
    tar: Builder<GzEncoder<BufWriter<&'f File>>>,
    bytes_left: u64,
    files_left: usize,
    /// The number of files that do not fit into a bundle: their paths are too long, or there are too many files.
    pub left_out: usize,
}

impl<'f> Writer<'f> {
    pub fn new(out: &'f File) -> Self {
        let tar = Builder::new(GzEncoder::new(BufWriter::new(out), Compression::default()));
        Writer { tar, bytes_left: BYTES_MAX, files_left: FILES_MAX, left_out: 0 }
    }

    /// Adds a file with this path below the top directory. Returns whether the bundle has room for the file.
    pub fn add(&mut self, path: &Path, len: u64, contents: impl Read) -> io::Result<bool> {
        let mut header = Header::new_ustar();
        let has_path = is_plain(path) && header.set_path(Path::new(TOP).join(path)).is_ok();
        match (self.bytes_left.checked_sub(len), self.files_left.checked_sub(1)) {
            (Some(bytes), Some(files)) if has_path => (self.bytes_left, self.files_left) = (bytes, files),
            _ => {
                self.left_out += 1;
                return Ok(false);
            }
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(len);
        header.set_mode(0o600);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        let mut contents = Counted { inner: contents.take(len), count: 0 };
        self.tar.append(&header, &mut contents)?;
        if contents.count < len {
            return invalid(&format!("{}: the file became shorter while it was read", path.display()));
        }
        Ok(true)
    }

    /// Adds a file whose contents are in memory.
    pub fn add_bytes(&mut self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        self.add(path, bytes.len() as u64, bytes)
    }

    pub fn finish(self) -> io::Result<()> {
        self.tar.into_inner()?.finish()?.flush()
    }
}

/// Counts the bytes that are read.
struct Counted<R> {
    inner: R,
    count: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(to)?;
        self.count += len as u64;
        Ok(len)
    }
}

/// Whether a path has only ordinary names, and no `..` or root.
pub fn is_plain(path: &Path) -> bool {
    path.components().next().is_some() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Unpacks a bundle into `dir`, which is empty and private to this user. Returns the top directory.
pub fn unpack(bundle: &File, dir: &Path) -> io::Result<PathBuf> {
    let top = dir.join(TOP);
    let stream = GzDecoder::new(BufReader::new(bundle)).take(BYTES_MAX + PER_FILE * FILES_MAX as u64);
    let mut archive = Archive::new(stream);
    let (mut bytes_left, mut count) = (BYTES_MAX, 0);
    // Without this setting, long names are read into memory, and they can be as long as the whole archive.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry.or_else(|error| damaged(&error))?;
        let path = entry.path_bytes().into_owned();
        let path = Path::new(OsStr::from_bytes(&path));
        if count == 0 && !path.starts_with(TOP) {
            return invalid("is no bundle of `jitsym bundle`");
        }
        if !is_plain(path) || !path.starts_with(TOP) || path == Path::new(TOP) {
            return invalid("is refused: it has a file outside of its directory");
        }
        if entry.header().entry_type() != EntryType::Regular {
            return invalid("is refused: it has a link or another entry that is no file");
        }
        let size = entry.header().entry_size().or_else(|error| damaged(&error))?;
        (bytes_left, count) = match bytes_left.checked_sub(size) {
            Some(left) if count < FILES_MAX => (left, count + 1),
            _ => return invalid(&format!("is refused: it has more than {FILES_MAX} files or {} GiB", BYTES_MAX >> 30)),
        };
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let copied = io::copy(&mut entry, &mut file).or_else(|error| damaged(&error))?;
        if copied != size {
            return damaged(&io::ErrorKind::UnexpectedEof.into());
        }
    }
    // The checksum is at the end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).or_else(|error| damaged(&error))?;
    if !top.join("perf.data").is_file() {
        return invalid("is no bundle of `jitsym bundle`: it has no recording");
    }
    Ok(top)
}

fn damaged<T>(error: &io::Error) -> io::Result<T> {
    invalid(&format!("is damaged: {error}"))
}
