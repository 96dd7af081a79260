//! Room in file systems: how much there is, and whether asking for it ahead pays.

use std::fs::File;
use std::path::Path;

use rustix::fs::{fallocate, fstatfs, statvfs, FallocateFlags};

use crate::sys::open_at::c_string;

/// Whether writing to room that was provided ahead pays: measured on ext4, down to a third of the time. On a file system in
/// memory the pages would be cleared first, which costs as much as filling them.
pub fn gains_by_reserve(file: &File) -> bool {
    file_system(file) == Some(EXT4)
}

/// Whether the pages of a file are copies of what is on a disk, and not all there is of them. False if that is not known.
pub fn is_on_disk(file: &File) -> bool {
    file_system(file).is_some_and(|found| [EXT4, XFS, BTRFS].contains(&found))
}

/// What the kernel calls file systems (linux include/uapi/linux/magic.h).
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

fn file_system(file: &File) -> Option<u64> {
    // C libraries differ in whether it has a sign.
    Some(fstatfs(file).ok()?.f_type as u32 as u64)
}

/// How many bytes this user can still have in the file system of a directory.
pub fn free_space(dir: &Path) -> Option<u64> {
    let data = statvfs(&c_string(dir.as_os_str()).ok()?).ok()?;
    // One without a bound has no blocks at all.
    (data.f_blocks > 0).then(|| data.f_bavail * data.f_frsize)
}

/// Has the file system provide room after the end of a file, which stays where it is. That is advice: if it cannot be followed
/// nothing is wrong.
pub fn reserve(file: &File, offset: u64, len: u64) {
    let _ = fallocate(file, FallocateFlags::KEEP_SIZE, offset, len);
}
