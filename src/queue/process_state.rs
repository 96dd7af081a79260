//! The state that a process keeps over all its sessions: the last failure, whether a panic was caught, and the memory pages
//! by which a forked child detects the fork.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::status::LastError;
use crate::api::error::{Error, Result};
use crate::sys::mapping::ForkPage;

#[derive(Debug)]
pub struct Host {
    /// In a forked child, this page shows that the process is a child, and whether the parent's threads continued during the
    /// fork.
    pub page: ForkPage,
    pub last_error: Arc<LastError>,
    broken: AtomicBool,
}

impl Host {
    pub fn new() -> Result<Host> {
        let page = ForkPage::new().map_err(|_| Error::NoMemory)?;
        Ok(Host { page, last_error: Arc::default(), broken: AtomicBool::new(false) })
    }

    /// Notes that a panic was caught. From now on every call returns `Error::Internal`.
    pub fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}
