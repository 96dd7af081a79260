//! What the writer knows of the process that it works for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::status::LastError;
use crate::api::error::{Error, Result};
use crate::sys::mapping::ForkPage;

/// See the module's description.
#[derive(Debug)]
pub struct Host {
    /// What a forked child finds out from it.
    pub page: ForkPage,
    /// Text of the last failure.
    pub last_error: Arc<LastError>,
    broken: AtomicBool,
}

impl Host {
    pub fn new() -> Result<Host> {
        let page = ForkPage::new().map_err(|_| Error::NoMemory)?;
        Ok(Host { page, last_error: Arc::default(), broken: AtomicBool::new(false) })
    }

    /// A panic was caught: from now on every call answers `Error::Internal`.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Whether a panic was caught.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}
