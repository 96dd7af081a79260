//! Reads the inputs of a command: files, compressed files, standard input, and the files of a process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jitsym_tool::bundle::archive::GZIP;
use jitsym_tool::check::Facts;
use jitsym_tool::kind::{self, Kind};
use jitsym_tool::open;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::{origin, process};

/// The name of the standard input.
const STDIN: &str = "-";

const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, and facts about it besides its bytes.
pub struct Input {
    pub bytes: Vec<u8>,
    pub facts: Facts,
}

/// A file to read.
#[derive(Clone)]
pub struct Source {
    pub path: PathBuf,
    /// The process whose pid led to the file. `None` if the user has named the file.
    of: Option<u32>,
}

impl Source {
    /// A file that the user has named.
    pub fn named(path: &Path) -> Source {
        Source { path: path.to_owned(), of: None }
    }

    /// All files of a process.
    pub fn of_process(pid: u32) -> io::Result<Vec<Source>> {
        Ok(process::files(pid)?.into_iter().map(|path| Source { path, of: Some(pid) }).collect())
    }
}

/// The files that a word of the command line stands for: a file, standard input, or the files of the process with this pid.
pub fn files(word: &Path) -> io::Result<Vec<Source>> {
    match process::pid_of(word) {
        Some(pid) => Source::of_process(pid),
        None => Ok(vec![Source::named(word)]),
    }
}

/// Reads a whole file into memory. A mapping of the file is not used, because it would end this program if another process
/// truncated the file. Fails with a description for files that are neither jitdump, perf map nor file of a region.
pub fn read(source: &Source) -> io::Result<Input> {
    let path = &*source.path;
    let input = match source.of {
        Some(pid) => regular(&open::of_process(path, pid)?, path)?,
        None if path == Path::new(STDIN) => {
            Input { bytes: open::read_stream(io::stdin().lock())?, facts: Facts::default() }
        }
        None if fs::metadata(path)?.file_type().is_fifo() => {
            Input { bytes: open::read_stream(File::open(path)?)?, facts: Facts::default() }
        }
        None => regular(&open::named(path)?, path)?,
    };
    let Input { mut bytes, mut facts } = input;
    if let Some(unpacked) = unpacked(&bytes)? {
        // Readers do not see the name and path of the compressed file.
        (bytes, facts) = (unpacked, Facts::default());
    }
    if let Some(other) = kind::other(&bytes, &facts) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, other));
    }
    facts.copied = facts.path.as_deref().is_some_and(|path| origin::is_copy(path, &bytes, Kind::of(&bytes, &facts)));
    Ok(Input { bytes, facts })
}

fn regular(file: &File, path: &Path) -> io::Result<Input> {
    let mode = Some(file.metadata()?.permissions().mode());
    let facts = Facts { path: fs::canonicalize(path).ok(), mode, ..Facts::default() };
    Ok(Input { bytes: open::read(file)?, facts })
}

/// Decompresses the output of `gzip` or `zstd`. `None` for anything else.
fn unpacked(packed: &[u8]) -> io::Result<Option<Vec<u8>>> {
    if packed.starts_with(GZIP) {
        open::read_stream(MultiGzDecoder::new(packed)).map(Some)
    } else if packed.starts_with(ZSTD) {
        open::read_stream(Frames { rest: packed, frame: None }).map(Some)
    } else {
        Ok(None)
    }
}

/// All frames of a `zstd` file, one after the other.
struct Frames<'a> {
    rest: &'a [u8],
    frame: Option<StreamingDecoder<&'a [u8], FrameDecoder>>,
}

impl Read for Frames<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let count = frame.read(to)?;
                if count > 0 || to.is_empty() {
                    return Ok(count);
                }
            }
            if let Some(frame) = self.frame.take() {
                self.rest = frame.into_inner();
            }
            if self.rest.is_empty() {
                return Ok(0);
            }
            let frame = StreamingDecoder::new(self.rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            self.frame = Some(frame);
        }
    }
}
