//! What is to be read: files, compressed ones, standard input, and the files of a process.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jitsym_tool::check::Facts;
use jitsym_tool::kind::{self, Kind};
use ruzstd::decoding::StreamingDecoder;

use crate::{origin, process};

/// Standard input.
const STDIN: &str = "-";
/// What a compressed file may grow to. A few bytes can stand for as many as there are.
const UNPACKED_MAX: u64 = 4 << 30;

const GZIP: &[u8] = b"\x1f\x8b";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// A file, and what is known of it besides its bytes.
pub struct Input {
    pub bytes: Vec<u8>,
    pub facts: Facts,
}

/// What a word of the command line stands for: a file, standard input, or the files of the process with this pid.
pub fn files(word: &Path) -> io::Result<Vec<PathBuf>> {
    let pid =
        word.to_str().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).and_then(|word| word.parse().ok());
    match pid.filter(|_| !word.exists()) {
        Some(pid) => process::files(pid),
        None => Ok(vec![word.to_owned()]),
    }
}

/// Reads a file whole, because a mapping of one that somebody cuts while it is looked at would end the program. Fails for what is
/// neither a jitdump nor a perf map nor a file of a region, and says what it is.
pub fn read(path: &Path) -> io::Result<Input> {
    let input = if path == Path::new(STDIN) {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes)?;
        Input { bytes, facts: Facts::default() }
    } else {
        read_file(path)?
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

fn read_file(path: &Path) -> io::Result<Input> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let regular = metadata.is_file();
    if !regular && !metadata.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not a file"));
    }
    let mut bytes = Vec::new();
    if regular {
        // Not what is added from here on.
        bytes.try_reserve_exact(metadata.len() as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
        (&mut file).take(metadata.len()).read_to_end(&mut bytes)?;
    } else {
        file.read_to_end(&mut bytes)?;
    }
    let facts = if regular {
        let mode = Some(metadata.permissions().mode());
        Facts { path: fs::canonicalize(path).ok(), mode, ..Facts::default() }
    } else {
        Facts::default()
    };
    Ok(Input { bytes, facts })
}

/// The contents of what `gzip` or `zstd` has written; `None` for anything else.
fn unpacked(packed: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    if packed.starts_with(GZIP) {
        MultiGzDecoder::new(packed).take(UNPACKED_MAX).read_to_end(&mut bytes)?;
    } else if packed.starts_with(ZSTD) {
        let mut rest = packed;
        while !rest.is_empty() && (bytes.len() as u64) < UNPACKED_MAX {
            let frame = StreamingDecoder::new(&mut rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            frame.take(UNPACKED_MAX - bytes.len() as u64).read_to_end(&mut bytes)?;
        }
    } else {
        return Ok(None);
    }
    if bytes.len() as u64 >= UNPACKED_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "holds more than 4 GiB"));
    }
    Ok(Some(bytes))
}
