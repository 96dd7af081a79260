//! Appends many pieces to a file with few system calls.

use std::fs::File;
use std::io::{self, IoSlice, Write};

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

/// Appends all of `slices` in as few system calls as the kernel allows. Changes `slices`. Returns how many bytes were written,
/// even if the call fails.
pub fn append(mut file: &File, mut slices: &mut [IoSlice<'_>]) -> (u64, io::Result<()>) {
    // The maximum number of slices that the kernel takes in one call (IOV_MAX of Linux).
    const MOST: usize = 1024;
    let mut written = 0;
    while !slices.is_empty() {
        let batch = slices.len().min(MOST);
        match file.write_vectored(&slices[..batch]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(count) => {
                written += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}

/// Appends either all of `slices` or nothing. Changes `slices`. Returns the total size of the slices.
pub fn append_whole(file: &File, slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let (written, result) = append(file, slices);
    if result.is_err() && written > 0 {
        // Readers would not find the records or lines after an incomplete record or line.
        let _ = file.metadata().and_then(|data| file.set_len(data.len() - written));
    }
    result.map(|()| written)
}

/// Clears `O_APPEND`, so that the file can be written at any offset. With `O_APPEND`, `pwrite` ignores its offset and writes
/// at the end of the file.
pub fn allow_any_place(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)?.difference(OFlags::APPEND))?)
}
