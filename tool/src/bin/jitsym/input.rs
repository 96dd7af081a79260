//! What is to be read: files, compressed ones, standard input, and the files of a process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jitsym_tool::check::Facts;
use jitsym_tool::kind::{self, Kind};
use jitsym_tool::open;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::{origin, process};

/// Standard input.
const STDIN: &str = "-";

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, and what is known of it besides its bytes.
pub struct Input {
    pub bytes: Vec<u8>,
    pub facts: Facts,
}

/// Where something is to be read.
#[derive(Clone)]
pub struct Source {
    pub path: PathBuf,
    /// The process by whose number it was found; `None` if the user has named it.
    of: Option<u32>,
}

impl Source {
    /// What the user has named.
    pub fn named(path: &Path) -> Source {
        Source { path: path.to_owned(), of: None }
    }

    /// All files of a process.
    pub fn of_process(pid: u32) -> io::Result<Vec<Source>> {
        Ok(process::files(pid)?.into_iter().map(|path| Source { path, of: Some(pid) }).collect())
    }
}

/// What a word of the command line stands for: a file, standard input, or the files of the process with this pid.
pub fn files(word: &Path) -> io::Result<Vec<Source>> {
    let pid =
        word.to_str().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).and_then(|word| word.parse().ok());
    match pid.filter(|_| !word.exists()) {
        Some(pid) => Source::of_process(pid),
        None => Ok(vec![Source::named(word)]),
    }
}

/// Reads a file whole, because a mapping of one that somebody cuts while it is looked at would end the program. Fails for what is
/// neither a jitdump nor a perf map nor a file of a region, and says what it is.
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
        // Its name and place are not those that readers see.
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

/// The contents of what `gzip` or `zstd` has written; `None` for anything else.
fn unpacked(packed: &[u8]) -> io::Result<Option<Vec<u8>>> {
    if packed.starts_with(GZIP) {
        open::read_stream(MultiGzDecoder::new(packed)).map(Some)
    } else if packed.starts_with(ZSTD) {
        open::read_stream(Frames { rest: packed, frame: None }).map(Some)
    } else {
        Ok(None)
    }
}

/// All frames of what `zstd` has written, one after the other.
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
