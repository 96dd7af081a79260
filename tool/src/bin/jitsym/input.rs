//! Files as they are read: whole, because a mapping of one that somebody cuts while it is looked at would end the program.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use jitsym_tool::check::Facts;

/// A file, and what is known of it besides its bytes.
pub struct Input {
    pub bytes: Vec<u8>,
    pub facts: Facts,
}

/// Reads a regular file, or a pipe: `jitsym check <(zcat FILE.gz)`.
pub fn read(path: &Path) -> io::Result<Input> {
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
        Facts { path: fs::canonicalize(path).ok(), mode: Some(metadata.permissions().mode()) }
    } else {
        Facts::default()
    };
    Ok(Input { bytes, facts })
}
