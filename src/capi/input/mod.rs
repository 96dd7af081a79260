//! Input from C, checked and converted to the types of the Rust API.
//!
//! Saved registers and bytes are used by reference. All other C structs are copied, except on the fast path of a registration.
//! A struct from an older or newer header has another size, and is copied over a struct of zeros.
//!
//! The fast path of a registration copies no struct that has this version's size. It reads the fields of `jitsym_code` one by
//! one, and compares `jitsym_unwind` in place.

mod code;
mod options;
mod region;
mod unwind;

pub use code::{code, move_target, named, range_flags, CodeInput};
pub use options::{options, sink, sinks};
pub use region::region;

use std::ffi::{c_char, CStr};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::{ptr, slice};

use crate::api::error::{Error, Result};

/// A struct of integers and raw pointers that comes from C. A struct whose bytes are all 0 is valid.
///
/// # Safety
/// Every field is an integer or a raw pointer.
unsafe trait Plain: Copy {
    /// Size of the struct in the first version of the header.
    const FIRST_SIZE: usize = size_of::<Self>();
    /// The error text for a size that is too small; `{}` stands for the size.
    const TOO_SMALL: &'static str;
}

/// Makes the error text [`Plain::TOO_SMALL`] of a struct whose first field is the struct's size. `$init` is the C macro that
/// sets the size, if there is such a macro.
macro_rules! size_of_struct {
    ($name:literal $(, $init:literal)?) => {
        concat!($name, ".struct_size is {}: set it to sizeof(", $name, ")" $(, ", or use ", $init)?)
    };
}
use size_of_struct;

/// Makes the error text [`Plain::TOO_SMALL`] of a struct that is an element of an array.
macro_rules! size_of_element {
    ($name:literal, $field:literal) => {
        concat!($field, " is {}: set it to sizeof(", $name, ")")
    };
}
use size_of_element;

/// Copies a struct of `size` bytes. Bytes that this version does not know must be zero.
///
/// # Safety
/// `from` points to `size` readable bytes.
#[inline(always)]
unsafe fn copy<T: Plain>(from: *const u8, size: usize) -> Result<T> {
    if size == size_of::<T>() {
        // The structs of nearly all callers have this size.
        // SAFETY: the caller promises `size` readable bytes. Integers and raw pointers may have any bytes.
        return Ok(unsafe { from.cast::<T>().read_unaligned() });
    }
    // SAFETY: the caller's promise.
    unsafe { copy_other(from, size) }
}

/// # Safety
/// `from` points to `size` readable bytes.
#[cold]
#[inline(never)]
unsafe fn copy_other<T: Plain>(from: *const u8, size: usize) -> Result<T> {
    if size < T::FIRST_SIZE {
        return Err(Error::StructSize.because(T::TOO_SMALL, [size as u64]));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise.
    let tail = unsafe { slice::from_raw_parts(from.add(known), size - known) };
    if let Some(at) = tail.iter().position(|&byte| byte != 0) {
        let text = "struct_size is {}, and byte {} of the struct, of which this version knows {}, is not 0";
        return Err(Error::StructTail.because(text, [size as u64, (known + at) as u64, known as u64]));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are readable at `from`, and fit into `value`. `value` is a new variable, so it does not
    // overlap the caller's struct.
    unsafe { ptr::copy_nonoverlapping(from, value.as_mut_ptr().cast::<u8>(), known) };
    // SAFETY: all bytes are initialised. Integers and raw pointers may have any bytes.
    Ok(unsafe { value.assume_init() })
}

/// Copies a struct whose first field is the struct's size.
///
/// # Safety
/// `from` is NULL or points to a struct. The struct begins with a `size_t`, which is the number of the struct's readable bytes.
#[inline(always)]
unsafe fn read<T: Plain>(from: *const T) -> Result<T> {
    if from.is_null() {
        return Err(Error::Null.because("the pointer to a struct is NULL", []));
    }
    // If the size is larger than this, the caller has made an error, and the struct is not read.
    const LARGEST: usize = 4096;
    // SAFETY: by the caller's promise the struct is readable. The size is the first field of every struct that is read
    // this way.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size > LARGEST {
        return Err(Error::StructTail.because("struct_size is {}: set it to sizeof", [size as u64]));
    }
    // SAFETY: the caller's promise.
    unsafe { copy(from.cast(), size) }
}

fn check_flags(flags: u32, known: u32) -> Result<()> {
    if flags & !known == 0 {
        Ok(())
    } else {
        Err(Error::Flags.because(
            "a field of flags has the unknown bits {x}, or a reserved field is not 0",
            [(flags & !known).into()],
        ))
    }
}

/// An array of C structs. The caller's structs may be larger or smaller than the structs of this version.
#[derive(Clone, Copy)]
struct Array<'a, T> {
    start: *const u8,
    count: usize,
    stride: usize,
    element: PhantomData<&'a T>,
}

impl<T: Plain> Array<'_, T> {
    /// # Safety
    /// `start` is NULL or points to `count` elements. Each element has `stride` bytes. If `stride` is 0, each element has the
    /// size that it had in the first version of the header.
    #[inline(always)]
    unsafe fn new(start: *const T, count: usize, stride: usize) -> Result<Self> {
        let stride = if stride == 0 { T::FIRST_SIZE } else { stride };
        if count > 0 && start.is_null() {
            return Err(Error::Null.because(
                "the number of lines, inlined functions or rows is {}, and their address NULL",
                [count as u64],
            ));
        }
        let array = Array { start: start.cast(), count, stride, element: PhantomData };
        if count > 0 && stride != size_of::<T>() {
            // The sizes and tails of all elements are checked here, so that `get` cannot fail.
            for index in 0..count {
                // SAFETY: the caller's promise.
                unsafe { copy::<T>(array.element(index), stride)? };
            }
        }
        Ok(array)
    }

    fn element(&self, index: usize) -> *const u8 {
        // SAFETY: `index` is below `count` at each use, so the element is inside the array.
        unsafe { self.start.add(index * self.stride) }
    }

    fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the caller of `new` promised a valid array, and `new` has checked sizes and tails.
        (index < self.count).then(|| unsafe { copy(self.element(index), self.stride).ok() }).flatten()
    }
}

/// Reads one field of the struct at a pointer. The struct may be unaligned.
macro_rules! field {
    ($from:expr, $field:ident) => {
        (&raw const (*$from).$field).read_unaligned()
    };
}
use field;

/// # Safety
/// `start` is NULL, or points to `len` bytes, or to a NUL-terminated string if `len` is 0.
unsafe fn name<'a>(start: *const c_char, len: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    if len == 0 {
        // SAFETY: the caller's promise.
        return unsafe { CStr::from_ptr(start) }.to_bytes();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}
