//! Recordings of the ground-truth program that are made by stepping: each instruction on each path of calls, with what is to be seen
//! of it.

use anyhow::Result;
use jitsym_step::record;

use crate::matrix::Task;
use crate::perf::{Graph, Lives, Mode, Perf, Recording};
use crate::program::{Leftovers, Program, Scenario};
use crate::run;

/// How much of the stack is copied: more than is in use.
const STACK_SIZE: usize = 16384;
/// What the program runs its stacks in, and where it ends if it is to be held.
const ENTER: &str = "call_guest";
const HOLD: &str = "hold";

/// Steps through a scenario. `perf` reports what the kernel says of the program.
pub fn record_scenario(perf: &Perf, program: &Program, task: &Task, mode: &Mode) -> Result<Recording> {
    let scenario = Scenario { step: true, ..task.run(mode.written) };
    let mut command = run::command(program.of(mode.graph));
    command.args(scenario.arguments());
    let data = task.dir.join("perf.data");
    let recorded = record(jitsym_step::Plan {
        program: command,
        perf: perf.command(task.dir, "record"),
        graph: match mode.graph {
            Graph::Dwarf => jitsym_step::Graph::Stack(STACK_SIZE),
            Graph::FramePointers => jitsym_step::Graph::FramePointers,
        },
        enter: &[ENTER],
        every: false,
        hold: scenario.hold.then_some(HOLD),
        data: &data,
    });
    // Its files are to go even if it has failed.
    let mut leftovers = Leftovers::of(&scenario.truth);
    let recorded = recorded?;
    leftovers.pids.extend(recorded.moments.iter().map(|moment| moment.pid));
    let mut truth = scenario.truth()?;
    truth.set_moments(&recorded.moments, &recorded.symbols);
    let held = recorded.held.map_or(Lives::Not, Lives::Stepped);
    Ok(Recording { _program: held, truth, data, _leftovers: leftovers })
}
