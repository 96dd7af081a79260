//! The limits on lengths, sizes and numbers.

/// The longest function name, in bytes.
pub const NAME_MAX: usize = 1000;
/// The longest directory, in bytes.
pub const DIR_MAX: usize = 1023;
/// The largest code, in bytes. perf stores the size in an `int`.
pub const CODE_SIZE_MAX: u64 = 0x7fff_ffff;
/// The number of free bytes after code with a gap ([`Code::gap`](super::code::Code::gap)).
pub const CODE_GAP_SIZE: u64 = 256;
