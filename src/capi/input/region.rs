//! Reads `jitsym_region_options` from C.

use super::size_of_struct;
use super::{check_flags, read, Plain};
use crate::api::error::Result;
use crate::capi::types::*;
use crate::sink::region::RegionOptions;

// SAFETY: every field is an integer or a raw pointer.
unsafe impl Plain for jitsym_region_options {
    const TOO_SMALL: &'static str = size_of_struct!("jitsym_region_options", "JITSYM_REGION_OPTIONS()");
}

/// Reads a `jitsym_region_options`.
///
/// # Safety
/// `from` fulfils the conditions of `read`.
pub unsafe fn region(from: *const jitsym_region_options) -> Result<RegionOptions> {
    // SAFETY: the caller's promise.
    let raw = unsafe { read(from)? };
    let (one_view, huge) =
        (jitsym_region_flag::JITSYM_REGION_ONE_VIEW as u32, jitsym_region_flag::JITSYM_REGION_HUGE_PAGES as u32);
    check_flags(raw.flags, one_view | huge)?;
    check_flags(raw.reserved, 0)?;
    Ok(RegionOptions {
        size: raw.size,
        max_size: raw.max_size,
        alignment: raw.alignment,
        near: raw.near_addr,
        one_view: raw.flags & one_view != 0,
        huge: raw.flags & huge != 0,
    })
}
