//! Writing: all of something or nothing, in few system calls.

use std::fs::File;
use std::io::{self, IoSlice, Write};

use rustix::fs::{fcntl_getfl, fcntl_setfl, OFlags};

/// Appends all of `slices`, in as few system calls as the kernel allows. Consumes them. Returns the number of bytes that are in
/// the file also if that fails.
pub fn append(mut file: &File, mut slices: &mut [IoSlice<'_>]) -> (u64, io::Result<()>) {
    // Linux IOV_MAX.
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

/// Appends all of `slices` or nothing. Consumes them; returns their size.
pub fn append_whole(file: &File, slices: &mut [IoSlice<'_>]) -> io::Result<u64> {
    let (written, result) = append(file, slices);
    if result.is_err() && written > 0 {
        // Readers would lose the records or lines after half a one.
        let _ = file.metadata().and_then(|data| file.set_len(data.len() - written));
    }
    result.map(|()| written)
}

/// Lets a file be written to at any place: with `O_APPEND`, `pwrite` writes at its end, whatever the offset.
pub fn allow_any_place(file: &File) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)?.difference(OFlags::APPEND))?)
}
