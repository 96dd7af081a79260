//! Runs the writer without a thread. A call of the host opens the files, and later calls run the writer's rounds.

use super::{fail, Inheritance, Turn, Writer};
use crate::api::options::Config;
use crate::queue::oneshot::Give;
use crate::queue::writer_in_calls::Turns;
use crate::sys::panic_guard;

struct InPlace {
    /// The writer, and the sender that passes the writer on once the writer has ended. `None` after the writer has ended.
    running: Option<(Box<Writer>, Give<Box<Writer>>)>,
}

/// Starts the writer on the calling thread (`Writer::start`). `inherited` returns the data that a forked child inherits.
/// `begin` calls `inherited` after the sinks have been opened. Returns false if no sink could be opened.
pub fn begin(
    mut writer: Box<Writer>,
    config: &Config,
    recover: bool,
    home: Give<Box<Writer>>,
    inherited: impl FnOnce() -> Option<Inheritance>,
) -> bool {
    if !writer.start(config, recover) {
        home.give(writer);
        return false;
    }
    inherited().into_iter().for_each(|inheritance| writer.inherit(inheritance));
    writer.announce();
    let shared = writer.shared;
    shared.in_place.begin(Box::new(InPlace { running: Some((writer, home)) }));
    true
}

impl InPlace {
    /// Runs `body` with the writer, and catches a panic. Returns false if the writer has ended.
    fn guarded(&mut self, body: impl FnOnce(&mut Option<(Box<Writer>, Give<Box<Writer>>)>)) -> bool {
        let Some((host, shared)) = self.running.as_ref().map(|(writer, _)| (writer.host, writer.shared)) else {
            return false;
        };
        if panic_guard::guarded(|_| body(&mut self.running)).is_none() {
            if let Some((mut writer, home)) = self.running.take() {
                // The drop tells the waiting callers that there will be no answer.
                drop((writer.stop.take(), writer.change.take(), home));
                // A destructor could panic again.
                std::mem::forget(writer);
            }
            fail(host, shared);
        }
        self.running.is_some()
    }
}

impl Turns for InPlace {
    fn turn(&mut self) -> bool {
        self.guarded(|running| {
            while let Some((writer, _)) = running {
                match writer.turn() {
                    Turn::Stop(stop) => {
                        let result = writer.finish(stop.off);
                        running.take().into_iter().for_each(|(writer, home)| _ = home.give(writer));
                        stop.ack.give(result);
                    }
                    // If more requests exist, the next turn follows at once, unless a fork waits for the writer: the next turn
                    // would wait for the end of this fork.
                    Turn::Done { again: true, .. } if !writer.quiesce().is_asked() => {}
                    Turn::Done { .. } | Turn::Exit => {
                        // The time of the next turn is unknown, so threads read the system's clock until then.
                        writer.shared.clock.rest();
                        return;
                    }
                }
            }
        })
    }

    fn be_quiescent(&mut self) {
        self.guarded(|running| running.iter_mut().for_each(|(writer, _)| writer.be_quiescent()));
    }
}
