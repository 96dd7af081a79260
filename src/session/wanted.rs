//! Reports which parts of a registration the sinks use, so that hosts can leave out the other parts.

use super::handle::{is_off, place_of, TAG};
use super::{fork, process};
use crate::api::options::{Sinks, Wanted};
use crate::sink;

/// Returns which parts the sinks want for the session that a handle names; none if the handle names no open session. The call
/// changes nothing, never waits, and does not take over a parent's state, so a signal handler may call it.
pub fn wanted(handle: u64) -> Wanted {
    if is_off(handle) || handle & 0xff != TAG {
        return Wanted::default();
    }
    let known = process::current_or_inherited().filter(|process| {
        let can_go_on = process.is_this_one() || fork::can_be_taken_over(process);
        can_go_on && !process.host.is_broken() && place_of(process, handle).is_ok()
    });
    let Some((process, shared)) = known.and_then(|process| Some((process, process.shared()?))) else {
        return Wanted::default();
    };
    let sinks = match shared.wanted() {
        // These sinks could not start, and the next registration tries again to start them.
        Sinks::NONE => sink::with_wants(process.unstarted()),
        sinks => sinks,
    };
    Wanted {
        code: sinks != Sinks::NONE,
        lines: sinks.want_groups(),
        unwind: sinks.want_groups() && shared.unwind_records(),
        adopt: sinks.has(Sinks::REGION) && process.regions.are_adopting(),
        region: shared.status.sinks().has(Sinks::REGION) && !process.regions.are_without_files(),
    }
}
