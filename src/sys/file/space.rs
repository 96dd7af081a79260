//! Determines how much room a file system has left, and allocates room for a file.

use std::fs::File;
use std::path::Path;

use rustix::fs::{fallocate, fstatfs, statvfs, FallocateFlags};

use crate::sys::open_at::c_string;

/// Whether writes to this file are faster if space for the written bytes has been allocated in advance. On ext4, the allocation
/// in advance reduced the time of some writes to a third. A file system in memory clears pages when they are allocated, which
/// costs as much as writing to the pages.
pub fn gains_by_reserve(file: &File) -> bool {
    file_system(file) == Some(EXT4)
}

/// Whether the contents of the file are on a disk, so that the pages of the file in memory are only copies. Returns false if
/// the file system is unknown.
pub fn is_on_disk(file: &File) -> bool {
    file_system(file).is_some_and(|found| [EXT4, XFS, BTRFS].contains(&found))
}

/// The kernel's numbers of file system types (linux include/uapi/linux/magic.h).
const EXT4: u64 = 0xef53;
const XFS: u64 = 0x5846_5342;
const BTRFS: u64 = 0x9123_683e;

fn file_system(file: &File) -> Option<u64> {
    // `f_type` is signed in some C libraries and unsigned in others.
    Some(fstatfs(file).ok()?.f_type as u32 as u64)
}

/// The free space in bytes that spools leave to other users of the file system. If the file system is smaller than twice
/// `FOR_OTHERS`, spools leave half of the file system free. A container's `/dev/shm` has only 64 MiB. If `/dev/shm` has no room
/// for a program's shared memory, the program ends with SIGBUS.
pub const FOR_OTHERS: u64 = 32 << 20;

/// How many bytes this user can still allocate in the file system of a directory. `None` if this is unknown or unlimited.
pub fn free_space(dir: &Path) -> Option<u64> {
    space(dir).map(|(free, _)| free)
}

/// Whether an allocation of `len` bytes would leave `FOR_OTHERS` bytes free in the file system of a directory. Returns true if
/// this is unknown.
pub fn leaves_room(dir: &Path, len: usize) -> bool {
    space(dir).is_none_or(|(free, size)| free.saturating_sub(len as u64) >= FOR_OTHERS.min(size / 2))
}

/// The free space and the size of the file system of a directory.
fn space(dir: &Path) -> Option<(u64, u64)> {
    let data = statvfs(&c_string(dir.as_os_str()).ok()?).ok()?;
    // A file system without a size limit reports 0 blocks.
    (data.f_blocks > 0).then(|| (data.f_bavail * data.f_frsize, data.f_blocks * data.f_frsize))
}

/// Asks the file system to allocate room for `len` bytes from `offset`. The length of the file stays the same. If the call
/// fails, the later writes allocate the room.
pub fn reserve(file: &File, offset: u64, len: u64) {
    let _ = fallocate(file, FallocateFlags::KEEP_SIZE, offset, len);
}
