//! Address space in which nothing is to be mapped.

use super::{checked, page_size, OwnedMapping, PRIVATE};

/// See the module's description. For the rest of the process.
#[derive(Debug)]
pub struct Reserved {
    start: u64,
}

impl Reserved {
    /// Sets `len` bytes at this address aside, if nothing is mapped there.
    pub fn at(start: u64, len: u64) -> Option<Reserved> {
        let (at, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
        let flags = PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let map = |len| {
            // SAFETY: a mapping that replaces none touches nothing that exists.
            let found = unsafe { libc::mmap(at as *mut libc::c_void, len, libc::PROT_NONE, flags, -1, 0) };
            let found = OwnedMapping { start: checked(found).ok()?, len };
            // A kernel that does not know the flag (before 4.17) takes the address for a wish.
            (found.start.as_ptr() as usize == at).then_some(found)
        };
        // A page first, which is to be locked neither (see `OwnedMapping::unlocked`), and then the rest of it in its place.
        let mut found = map(page_size().min(len))?;
        found.unlock();
        if found.resize(len, 0).is_err() {
            // Under valgrind and qemu mappings do not grow where they are.
            drop(found);
            found = map(len)?;
        }
        found.leak();
        Some(Reserved { start })
    }

    /// Its first byte.
    pub fn start(&self) -> u64 {
        self.start
    }
}
