//! The reserve is memory that the allocator of this project's C libraries uses when the system has no more memory. Without
//! the reserve, a failed allocation in Rust's standard library would end the host's process.
//!
//! The reserve provides the small pieces that are needed to finish a call, or a round of the writer, properly. Before the
//! library begins new work, it calls [`is_short`]. While memory is short, the library begins no new work. Large pieces do not
//! come from the reserve: their allocation can fail, and the code handles the failure.
//!
//! Large pieces are mappings, which return to the kernel when they are freed. glibc also makes a mapping for each piece above a
//! threshold, but raises the threshold for the whole process, up to 32 MiB, when a mapped piece is freed. With a raised
//! threshold, the host's heap would keep memory that this library has freed. If LeakSanitizer is linked, large pieces are in
//! the heap like small pieces, because LeakSanitizer finds no pointers in mappings.
//!
//! The reserve exists only in the libraries that this project builds for C programs (feature `reserve`). A Rust program has a
//! single allocator, which it chooses itself.

use std::collections::TryReserveError;

#[cfg(feature = "reserve")]
pub use reserve::is_short;

/// Whether memory has run out and is still short.
#[cfg(not(feature = "reserve"))]
#[inline]
pub fn is_short() -> bool {
    false
}

/// Copies bytes. Fails if there is no memory for the copy.
pub fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, TryReserveError> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Whether `bytes` bytes can be allocated. Callers call this function before they make an allocation that cannot report a
/// failure.
pub fn is_there(bytes: usize) -> bool {
    let mut probe: Vec<u8> = Vec::new();
    let is_there = probe.try_reserve_exact(bytes).is_ok();
    // `black_box` makes the compiler assume that the memory is used. The compiler may remove the allocation of unused memory,
    // and then assume that the allocation has succeeded.
    std::hint::black_box(probe.as_ptr());
    is_there
}

/// Like `is_there`, but if the reserve can provide `bytes` bytes, returns true without a check. Callers call `may_take` before
/// they call functions of other libraries whose allocations cannot report a failure.
pub fn may_take(bytes: usize) -> bool {
    const LITTLE: usize = 64 << 10;
    bytes <= LITTLE || is_there(bytes)
}

#[cfg(feature = "reserve")]
mod reserve {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::UnsafeCell;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use crate::sys::mapping::{page_size, OwnedMapping, PRIVATE, READ_WRITE};

    const SIZE: usize = 1 << 20;
    /// The largest piece that the reserve provides.
    const LARGEST: usize = 64 << 10;
    const ALIGN: usize = align_of::<Reserve>();
    /// Pieces of at least this size are mappings. Smaller pieces are allocated and freed often. If smaller pieces were
    /// mappings, the kernel might place them right below code memory, where a region needs the address space for a header page.
    const LARGE: usize = 512 << 10;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    struct Allocator;

    #[repr(align(4096))]
    struct Reserve(UnsafeCell<[u8; SIZE]>);

    // SAFETY: each piece of the reserve has one owner.
    unsafe impl Sync for Reserve {}

    static RESERVE: Reserve = Reserve(UnsafeCell::new([0; SIZE]));
    /// How many pieces of the reserve are in use, and at which offset the next piece begins: `count:32 | next:32`. When no
    /// piece is in use, the next piece begins at offset 0 again.
    static STATE: AtomicU64 = AtomicU64::new(0);
    static SHORT: AtomicBool = AtomicBool::new(false);

    #[inline]
    pub fn is_short() -> bool {
        SHORT.load(Ordering::Relaxed) && is_still_short()
    }

    #[cold]
    fn is_still_short() -> bool {
        let half_used = STATE.load(Ordering::Relaxed) as u32 as usize > SIZE / 2;
        if half_used || !super::is_there(LARGEST + 1) {
            return true;
        }
        SHORT.store(false, Ordering::Relaxed);
        false
    }

    fn start() -> *mut u8 {
        RESERVE.0.get().cast()
    }

    fn is_reserve(piece: *mut u8) -> bool {
        (piece as usize).wrapping_sub(start() as usize) < SIZE
    }

    #[cold]
    fn take(layout: Layout) -> *mut u8 {
        SHORT.store(true, Ordering::Relaxed);
        if layout.size() > LARGEST || layout.align() > ALIGN {
            return ptr::null_mut();
        }
        let change = |state: u64| {
            let at = (state as u32 as usize).next_multiple_of(layout.align());
            let end = at + layout.size();
            (end <= SIZE).then_some(((state >> 32) + 1) << 32 | end as u64)
        };
        match STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, change) {
            // SAFETY: the piece lies inside the reserve.
            Ok(before) => unsafe { start().add((before as u32 as usize).next_multiple_of(layout.align())) },
            Err(_) => ptr::null_mut(),
        }
    }

    #[cold]
    fn give_back() {
        let change = |state: u64| {
            let count = (state >> 32) - 1;
            Some(if count == 0 { 0 } else { count << 32 | u64::from(state as u32) })
        };
        let _ = STATE.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }

    // The linker sets this weak symbol to NULL if LeakSanitizer is not linked, so no allocation has to look up the name at
    // run time.
    std::arch::global_asm!(
        ".weak __lsan_register_root_region",
        ".pushsection .data.rel.ro.jitsym_lsan,\"aw\",%progbits",
        ".p2align 3",
        ".globl jitsym_lsan",
        ".hidden jitsym_lsan",
        "jitsym_lsan:",
        concat!(pointer!(), "__lsan_register_root_region"),
        ".popsection",
    );

    unsafe extern "C" {
        safe static jitsym_lsan: *const ();
    }

    fn is_mapped(layout: Layout) -> bool {
        layout.size() >= LARGE && layout.align() <= page_size() && jitsym_lsan.is_null()
    }

    fn new_piece(layout: Layout, other: unsafe fn(&System, Layout) -> *mut u8) -> *mut u8 {
        let piece = match is_mapped(layout) {
            true => OwnedMapping::new(layout.size(), READ_WRITE, PRIVATE, None)
                .map_or(ptr::null_mut(), |new| new.leak().as_ptr()),
            // SAFETY: the caller of a global allocator promises that the size of the layout is not 0.
            false => unsafe { other(&System, layout) },
        };
        if piece.is_null() {
            take(layout)
        } else {
            piece
        }
    }

    // SAFETY: each piece is memory of the system's allocator, a mapping, or a part of the reserve, and is freed accordingly.
    // The reserve never hands out memory that is in use.
    unsafe impl GlobalAlloc for Allocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            new_piece(layout, System::alloc)
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            let piece = new_piece(layout, System::alloc_zeroed);
            if is_reserve(piece) {
                // SAFETY: the piece has this size.
                unsafe { piece.write_bytes(0, layout.size()) };
            }
            piece
        }

        unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
            if is_reserve(piece) {
                give_back();
            } else if is_mapped(layout) {
                // SAFETY: the piece is a mapping of this size, and nobody uses it any longer.
                unsafe { libc::munmap(piece.cast(), layout.size()) };
            } else {
                // SAFETY: the caller's promise.
                unsafe { System.dealloc(piece, layout) };
            }
        }

        unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: the caller promises that the size makes a valid layout.
            let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
            let moved = match (is_mapped(layout), is_mapped(new_layout)) {
                // SAFETY: the piece is a mapping of this size, and the caller uses only the new address afterwards.
                (true, true) => unsafe { libc::mremap(piece.cast(), layout.size(), size, libc::MREMAP_MAYMOVE) }.cast(),
                // SAFETY: the caller's promise.
                (false, false) if !is_reserve(piece) => unsafe { System.realloc(piece, layout, size) },
                _ => ptr::null_mut(),
            };
            if !moved.is_null() && moved != libc::MAP_FAILED.cast() {
                return moved;
            }
            // SAFETY: the caller's promise.
            let new = unsafe { self.alloc(new_layout) };
            if !new.is_null() {
                // SAFETY: both pieces have at least this size, and they do not overlap.
                unsafe {
                    ptr::copy_nonoverlapping(piece, new, size.min(layout.size()));
                    self.dealloc(piece, layout);
                }
            }
            new
        }
    }
}
