//! Regions of code memory.

use std::ffi::c_void;

/// Bit flags of a region.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum jitsym_region_flag {
    /// One view of private memory. The runtime changes the memory's protection (`mprotect`).
    ///
    /// The memory starts readable and writable; the runtime makes it executable before code runs. A forked child has its own
    /// copy. Without this flag, a region has two views of shared memory, whose protections must not change.
    JITSYM_REGION_ONE_VIEW = 1,
    /// Alignment to 2 MiB, and huge pages if the kernel has them for this memory.
    JITSYM_REGION_HUGE_PAGES = 2,
}

/// The options of a region of code memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_region_options {
    /// `sizeof(jitsym_region_options)`.
    pub struct_size: usize,
    /// Size in bytes, rounded up to whole pages; at most 1 GiB.
    pub size: u64,
    /// Largest size in bytes, for `jitsym_region_grow`; at most 1 GiB. 0 means `size`.
    ///
    /// Address space for this size is reserved.
    pub max_size: u64,
    /// Alignment of the executable view: a power of two, at most 512 MiB. 0: a page.
    pub alignment: u64,
    /// All of the executable view is within 2 GiB of this address. 0: anywhere.
    ///
    /// Signed 32-bit displacements, as in calls and jumps of x86-64, then reach all of the view from this address.
    pub near_addr: u64,
    /// `JITSYM_REGION_*` bits.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A region of code memory, or memory from `jitsym_alloc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct jitsym_region {
    /// `sizeof(jitsym_region)`, set by the caller.
    pub struct_size: usize,
    /// Where code runs: readable and executable. Register code at this address.
    pub exec: *mut c_void,
    /// Where code is written: the same memory, readable and writable.
    ///
    /// A region reads as zero at first. With `JITSYM_REGION_ONE_VIEW`, this address equals `exec`.
    pub write: *mut c_void,
    /// Size in bytes.
    pub size: u64,
}
