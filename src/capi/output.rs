//! Output to C: regions, counters and text.

use std::ffi::{c_char, c_void};
use std::ptr;

use super::types::*;
use crate::api::error::{Error, Result};
use crate::queue::status::{with_counters, Stats};
use crate::sink::region::CodeRegion;

/// Calls `make`, and writes the resulting region (or piece of a region) to `out`. Checks `out` before the call of `make`. If
/// the caller cannot receive the region, the region is not made.
///
/// # Safety
/// `out` is NULL or points to `out->struct_size` writable bytes.
pub unsafe fn write_region(out: *mut jitsym_region, make: impl FnOnce() -> Result<CodeRegion>) -> Result<()> {
    let in_c = |struct_size| {
        let CodeRegion { exec, write, size } = make()?;
        Ok(jitsym_region { struct_size, exec: exec as *mut c_void, write: write as *mut c_void, size })
    };
    // SAFETY: the caller's promise.
    unsafe { write_struct(out, size_of::<jitsym_region>(), in_c) }
}

/// Writes the part of `jitsym_stats` that the caller's struct has room for.
///
/// # Safety
/// `out` is NULL or points to `out->struct_size` writable bytes.
pub unsafe fn write_stats(out: *mut jitsym_stats, stats: &Stats) -> Result<()> {
    macro_rules! in_c {
        ($($name:ident)*) => {
            |struct_size| Ok(jitsym_stats {
                struct_size,
                sinks_running: stats.sinks_running.0,
                sinks_failed: stats.sinks_failed.0,
                memory: stats.memory,
                memory_held: stats.memory_held,
                spool: stats.spool as u32,
                inherited: u32::try_from(stats.inherited).unwrap_or(u32::MAX),
                regions: stats.regions,
                threads: stats.threads,
                $($name: stats.$name,)*
            })
        };
    }
    // SAFETY: the caller's promise.
    unsafe { write_struct(out, std::mem::offset_of!(jitsym_stats, jitdump_lost), with_counters!(in_c)) }
}

/// Calls `make` with the size of the caller's struct, and writes as much of the new struct as fits into the caller's
/// struct. Refuses a caller's struct that is smaller than `least` bytes.
///
/// # Safety
/// The first field of `T` is the size of the struct in bytes. `out` is NULL, or points to as many writable bytes as the first
/// field of `*out` says.
unsafe fn write_struct<T>(out: *mut T, least: usize, make: impl FnOnce(usize) -> Result<T>) -> Result<()> {
    if out.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { out.cast::<usize>().read_unaligned() };
    if size < least {
        return Err(Error::StructSize);
    }
    let made = make(size)?;
    // SAFETY: both structs have at least as many bytes as are copied. If the caller's struct is larger (from a newer
    // header), its other fields are not changed.
    unsafe { ptr::copy_nonoverlapping((&raw const made).cast::<u8>(), out.cast(), size.min(size_of::<T>())) };
    Ok(())
}

/// Checks a struct of a C program whose first field is the struct's size.
///
/// # Safety
/// The first field of `T` is the size of the struct in bytes. `place` is NULL, or points to as many bytes as the first field of
/// `*place` says.
pub unsafe fn read_struct_size<T>(place: *mut T) -> Result<*mut T> {
    if place.is_null() {
        return Err(Error::Null);
    }
    // SAFETY: the caller's promise.
    let size = unsafe { place.cast::<usize>().read_unaligned() };
    if size < size_of::<T>() {
        Err(Error::StructSize)
    } else {
        Ok(place)
    }
}

/// Copies as many bytes as fit into a buffer, and a NUL.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
pub unsafe fn write_cut(bytes: &[u8], buf: *mut c_char, size: usize) {
    let Some(room) = size.checked_sub(1).filter(|_| !buf.is_null()) else { return };
    let mut len = bytes.len().min(room);
    // Only whole characters of UTF-8 are copied: the first byte that is left out begins a character.
    while len > 0 && bytes.get(len).is_some_and(|byte| byte & 0xc0 == 0x80) {
        len -= 1;
    }
    // SAFETY: the bytes and the NUL fit.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), len);
        buf.add(len).write(0);
    }
}

/// Copies a text and a NUL to a buffer. If the text is too long, copies only as many whole characters as fit.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
pub unsafe fn write_text(text: &str, buf: *mut c_char, size: usize) -> Result<()> {
    let mut len = text.len().min(size.saturating_sub(1));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: the caller's promise.
    unsafe { write_bytes(&text.as_bytes()[..len], buf, size) }
}

/// Copies bytes and a NUL to a buffer. Fails if the buffer is too small for the bytes and the NUL.
///
/// # Safety
/// `buf` is NULL or points to `size` writable bytes.
pub unsafe fn write_bytes(bytes: &[u8], buf: *mut c_char, size: usize) -> Result<()> {
    if buf.is_null() {
        return Err(Error::Null);
    }
    if bytes.len() >= size {
        return Err(Error::Buffer);
    }
    // SAFETY: the bytes and the NUL fit.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), bytes.len());
        buf.add(bytes.len()).write(0);
    }
    Ok(())
}
