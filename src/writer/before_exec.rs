//! Keeps the names that a program has left in the perf map of this process before it executed the present program.
//!
//! perf reads the map after the recording, so one map has to name the code of both programs.

use super::Applier;
use crate::api::options::Config;
use crate::format::perf_map;
use crate::registry::{Home, Live, TOO_LARGE};

impl Applier {
    /// Continues the earlier program's map, and adds the code in this map as dead code. No code may be live. If the map cannot
    /// be read, or memory is short, names are missing.
    pub(super) fn know_earlier_program(&mut self, config: &Config) {
        let text = self.sinks.continue_map(config).unwrap_or_default();
        for (addr, size, name) in perf_map::lines(&text) {
            // No slot is in use, so any id will do.
            let (id, code) = (1 << 32, Live { addr, size, index: 0, stored: None, home: Home::Plain });
            if size < TOO_LARGE && self.registry.make_room(id, name.len(), 0, false) {
                self.registry.insert(id, &code, name, &mut Vec::new());
                self.registry.remove(id);
            }
        }
    }
}
