//! How the bridge is started while the library is loaded.

use crate::session::bridge;
use crate::session::process::blocking_guarded;

/// Starts the bridge, which looks at the lists of debuggers. The shared library looks this function up by its name when
/// it is loaded (session/autoload.rs); it is not in the header, because nobody else calls it. In the static library it
/// is hidden.
#[cfg_attr(feature = "reserve", no_mangle)]
pub extern "C" fn jitsym_start_bridge() {
    // No panic may unwind into the loader. A failure is ignored, because no caller could receive it.
    blocking_guarded(|| bridge::start(None));
}
