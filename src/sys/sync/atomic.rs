//! Atomics for builds that look for races (see `sync`). A test can make one access relaxed. If the test fails with the relaxed
//! access, the test is able to detect that the memory order of this access is missing.

use std::fmt;
use std::panic::Location;
pub use std::sync::atomic::{compiler_fence, Ordering};
use std::sync::atomic::{AtomicPtr as AtomicPtrPlain, AtomicU32 as AtomicU32Plain};

#[cfg(jitsym_loom)]
use loom::sync::atomic as inner;
#[cfg(not(jitsym_loom))]
use std::sync::atomic as inner;

/// A line of the source: `WEAK_LINE` is the number of the line, and `WEAK_FILE` is the end of the file's path. Atomic accesses
/// in this source line are relaxed, and fences in this source line do nothing. The number 0 means that there is no such line.
/// The two values are read by relaxed loads, because stronger loads would order memory accesses that are unordered in normal
/// builds.
static WEAK_LINE: AtomicU32Plain = AtomicU32Plain::new(NOT_ASKED);
static WEAK_FILE: AtomicPtrPlain<String> = AtomicPtrPlain::new(std::ptr::null_mut());

/// Value of `WEAK_LINE` before the environment was read.
const NOT_ASKED: u32 = u32::MAX;

/// Weakens the accesses in a source line, which is given as `FILE:LINE`. Only one source line is weak at a time, so each call
/// ends the effect of the previous call.
pub fn weaken(place: Option<&str>) {
    let (file, line) = place.and_then(|place| place.rsplit_once(':')).unwrap_or_default();
    // The old path is never freed, because another thread may be reading it.
    WEAK_FILE.store(Box::into_raw(Box::new(file.to_owned())), Ordering::Relaxed);
    WEAK_LINE.store(line.parse().unwrap_or(0), Ordering::Relaxed);
}

fn is_weak(at: &Location<'_>) -> bool {
    if WEAK_LINE.load(Ordering::Relaxed) == NOT_ASKED {
        weaken(std::env::var("JITSYM_WEAKEN").ok().as_deref());
    }
    if WEAK_LINE.load(Ordering::Relaxed) != at.line() {
        return false;
    }
    // SAFETY: values that are stored in `WEAK_FILE` are never freed.
    unsafe { WEAK_FILE.load(Ordering::Relaxed).as_ref() }.is_some_and(|file| at.file().ends_with(file.as_str()))
}

#[track_caller]
fn as_asked(order: Ordering) -> Ordering {
    if is_weak(Location::caller()) {
        Ordering::Relaxed
    } else {
        order
    }
}

/// Replaces `std::sync::atomic::fence`.
#[track_caller]
pub fn fence(order: Ordering) {
    if !is_weak(Location::caller()) {
        inner::fence(order);
    }
}

macro_rules! atomics {
    ($($name:ident $(<$T:ident>)?: $value:ty;)*) => {$(
        /// Replaces the type of the same name in `std::sync::atomic`.
        #[repr(transparent)]
        pub struct $name $(<$T>)? (inner::$name $(<$T>)?);

        #[allow(dead_code, reason = "not each of them is used with each type")]
        impl $(<$T>)? $name $(<$T>)? {
            pub fn new(value: $value) -> Self {
                Self(inner::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(as_asked(order))
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, as_asked(order));
            }

            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, as_asked(order))
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(old, new, as_asked(success), as_asked(failure))
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                next: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.0.fetch_update(as_asked(set), as_asked(fetch), next)
            }
        }

        impl $(<$T>)? fmt::Debug for $name $(<$T>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

atomics! {
    AtomicBool: bool;
    AtomicU8: u8;
    AtomicU32: u32;
    AtomicU64: u64;
    AtomicI64: i64;
    AtomicUsize: usize;
    AtomicPtr<T>: *mut T;
}

macro_rules! arithmetic {
    ($($name:ident: $value:ty;)*) => {$(
        #[allow(dead_code, reason = "not each of them is used with each type")]
        impl $name {
            #[track_caller]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_add(value, as_asked(order))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_sub(value, as_asked(order))
            }

            #[track_caller]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_or(value, as_asked(order))
            }

            #[track_caller]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.0.fetch_and(value, as_asked(order))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }
    )*};
}

arithmetic! {
    AtomicU8: u8;
    AtomicU32: u32;
    AtomicU64: u64;
    AtomicI64: i64;
    AtomicUsize: usize;
}

/// Gives access to the plain atomic, whose address the kernel needs for a futex.
impl std::ops::Deref for AtomicU32 {
    type Target = inner::AtomicU32;

    fn deref(&self) -> &inner::AtomicU32 {
        &self.0
    }
}

impl Default for AtomicBool {
    fn default() -> Self {
        AtomicBool::new(false)
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        AtomicPtr::new(std::ptr::null_mut())
    }
}
