//! How the bridge is started while the library is loaded.

use crate::session::bridge;
use crate::session::process::blocking_guarded;

/// Begins to look at the lists of debuggers. The shared library looks this up by its name when it is loaded (session/autoload.rs);
/// it is not in the header, because nobody else calls it. In the static library it is hidden.
#[cfg_attr(feature = "reserve", no_mangle)]
pub extern "C" fn jitsym_start_bridge() {
    // Nothing may unwind into the loader; there is nobody to hear of a failure.
    let _ = blocking_guarded(|| {
        bridge::start(None);
        Ok(())
    });
}
