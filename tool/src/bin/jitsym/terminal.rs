//! The width of a terminal.

use std::os::fd::{AsFd, AsRawFd};

/// The columns of the terminal that a descriptor is; `None` if it is none, or does not say.
pub fn width(fd: &impl AsFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open as long as it is borrowed, and the request writes nothing but this struct.
    let result = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}
