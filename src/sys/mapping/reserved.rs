//! Reserves address space, so that nothing else is mapped there.

use super::{checked, page_size, OwnedMapping, PRIVATE};

/// Reserves `len` bytes at the address `start` until the process ends. Returns the address, or `None` if something is mapped
/// there.
pub fn reserve_at(start: u64, len: u64) -> Option<u64> {
    let (at, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
    let flags = PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let map = |len| {
        // SAFETY: a mapping that replaces no other mapping changes no existing memory.
        let found = unsafe { libc::mmap(at as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
        let found = OwnedMapping { start: checked(found).ok()?, len };
        // A kernel before 4.17 ignores `MAP_FIXED_NOREPLACE`, uses the address only as a hint, and may map memory at another
        // address.
        (found.start.as_ptr() as usize == at).then_some(found)
    };
    // The memory must not be locked (see `OwnedMapping::unlocked`). So this function maps one page, unlocks it, and extends
    // the mapping in place.
    let mut found = map(page_size().min(len))?;
    found.unlock();
    if found.resize(len, 0).is_err() {
        // Under valgrind and qemu a mapping cannot be extended in place.
        drop(found);
        found = map(len)?;
    }
    found.leak();
    Some(start)
}
