//! The function that starts the bridge when the library is loaded.

use crate::session::bridge;
use crate::session::process::blocking_guarded;

/// Starts the bridge, which registers the code that other libraries list for debuggers. When the shared library is
/// loaded, session/autoload.rs finds this function by its name. The function is not in the header, because no other
/// code calls it. In the static library the function is hidden.
#[cfg_attr(feature = "reserve", no_mangle)]
pub extern "C" fn jitsym_start_bridge() {
    // No panic may unwind into the loader. A failure is ignored, because no caller could receive it.
    blocking_guarded(|| bridge::start(None));
}
