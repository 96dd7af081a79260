//! Probes of the provider `jitsym` (SystemTap's `.note.stapsdt`), to which perf, bpftrace and systemtap can attach. While no tool
//! is attached, a probe costs a call, a load and a branch. The functions are not inlined, so that each probe is at one place.

use std::ffi::c_char;

use super::types::jitsym_code;
use crate::api::Id;

/// Makes the section of the probes' semaphores begin with a page. If lld links the library, the file's page where the writable
/// data begin is also mapped as the end of the data that relocations change. When a program starts, the kernel would count a
/// tool's probe in that mapping, so the probe would stay off (linux kernel/events/uprobes.c, `delayed_ref_ctr_inc`).
#[repr(align(4096))]
struct PageStart;

#[used]
#[link_section = ".probes"]
static PAGE_START: PageStart = PageStart;

/// Code was registered: id, address, size, name, length of the name.
///
/// # Safety
/// `code` is valid.
#[inline(never)]
pub unsafe fn load(id: Id, code: *const jitsym_code) {
    // SAFETY: the caller's promise. Every version of the struct has these fields.
    let (addr, size, name, name_len) = unsafe {
        let fields =
            (&raw const (*code).addr, &raw const (*code).size, &raw const (*code).name, &raw const (*code).name_len);
        move || {
            (fields.0.read_unaligned(), fields.1.read_unaligned(), fields.2.read_unaligned(), fields.3.read_unaligned())
        }
    }();
    probe::probe_lazy!(jitsym, load, id.0, addr, size, name, length(name, name_len));
}

/// The length of a name that a caller has passed.
#[cold]
fn length(name: *const c_char, len: usize) -> usize {
    if len != 0 || name.is_null() {
        return len;
    }
    // SAFETY: a name without a length ends with a NUL.
    unsafe { std::ffi::CStr::from_ptr(name) }.count_bytes()
}

/// Code was moved: id, new address.
#[inline(never)]
pub fn moved(id: u64, addr: u64) {
    probe::probe_lazy!(jitsym, move, id, addr);
}

/// A registration or a move was dropped, because the memory for records was full.
#[cold]
#[inline(never)]
pub fn lost() {
    probe::probe_lazy!(jitsym, lost,);
}

/// Code was unregistered: id, or address and size of a range.
#[inline(never)]
pub fn unload(id: u64, addr: u64, size: u64) {
    probe::probe_lazy!(jitsym, unload, id, addr, size);
}
