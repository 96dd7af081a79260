//! Follows a function along its control flow, and computes the state before each instruction.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::Rows;
use super::state::{State, Value};

/// The instruction that follows an instruction. Targets are relative to the start of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the next instruction.
    Next,
    /// To the target or to the next instruction.
    Branch(u64),
    /// To the target.
    Jump(u64),
    /// To other code, which returns to the next instruction.
    Call,
    /// Back to the caller.
    Return,
    /// To an unknown address.
    Leave,
    /// There is no next instruction, because this instruction traps.
    Trap,
}

pub(super) trait Machine {
    type Instruction: Clone;
    /// The stack pointer.
    const SP: u16;
    /// The frame pointer.
    const FP: u16;
    /// CFA minus stack pointer at the entry of a function.
    const ENTRY: i64;

    /// The instruction at an offset, its size, and its flow. `None` if no function can have such an instruction.
    fn decode(&mut self, code: &[u8], at: u64) -> Option<(Self::Instruction, u64, Flow)>;
    /// Applies the effects of an instruction to the state.
    fn apply(&mut self, instruction: &Self::Instruction, state: &mut State);
    /// Whether an instruction has no effect.
    fn is_no_op(&self, instruction: &Self::Instruction) -> bool;
    /// The instruction as text.
    fn text(&mut self, instruction: &Self::Instruction) -> String;
}

/// The maximum number of instructions, and of steps through them.
const INSTRUCTIONS_MAX: usize = 200_000;
const STEPS_MAX: usize = 2_000_000;

/// A reachable instruction.
struct Node<I> {
    instruction: I,
    size: u64,
    flow: Flow,
}

/// All reachable instructions.
pub(super) struct Graph<I> {
    nodes: BTreeMap<u64, Node<I>>,
    /// Instructions that are reached from several instructions, or not from the preceding instruction.
    leaders: BTreeSet<u64>,
    entries: Vec<u64>,
    /// Whether any path returns or leaves the code.
    ends: bool,
}

impl<I: Clone> Graph<I> {
    /// Follows the code from its start. If an entry of a table was not reached and `entered` accepts it, the code is also
    /// followed from there. Returns `None` if the bytes are not a complete function: they contain invalid instructions,
    /// control runs past the end, or no path leaves the code.
    pub fn new<M: Machine<Instruction = I>>(
        machine: &mut M,
        code: &[u8],
        entries: &[u64],
        entered: &dyn Fn(u64) -> bool,
    ) -> Option<Graph<I>> {
        let mut graph = Graph { nodes: BTreeMap::new(), leaders: BTreeSet::new(), entries: Vec::new(), ends: false };
        graph.add(machine, code, 0)?;
        for &entry in entries {
            if !graph.nodes.contains_key(&entry) && entered(entry) {
                graph.add(machine, code, entry)?;
            }
        }
        let mut end = 0;
        let apart = graph.nodes.iter().all(|(&at, node)| std::mem::replace(&mut end, at + node.size) <= at);
        // A single return instruction proves nothing.
        (apart && graph.ends && graph.nodes.len() > 1).then_some(graph)
    }

    fn add<M: Machine<Instruction = I>>(&mut self, machine: &mut M, code: &[u8], entry: u64) -> Option<()> {
        let size = code.len() as u64;
        let mut work = vec![entry];
        self.leaders.insert(entry);
        self.entries.push(entry);
        while let Some(mut at) = work.pop() {
            // Whether only no-ops have followed a call. The call may not return.
            let mut padding = false;
            while !self.nodes.contains_key(&at) {
                let (instruction, length, flow) = machine.decode(code, at)?;
                padding = flow == Flow::Call || padding && machine.is_no_op(&instruction);
                let next = at.checked_add(length).filter(|&next| next <= size)?;
                self.nodes.insert(at, Node { instruction, size: length, flow });
                if self.nodes.len() > INSTRUCTIONS_MAX {
                    return None;
                }
                if let Flow::Branch(target) | Flow::Jump(target) = flow {
                    if target < size {
                        self.leaders.insert(target);
                        work.push(target);
                    } else {
                        self.ends = true;
                    }
                }
                match flow {
                    Flow::Next if next == size && padding => break,
                    Flow::Next | Flow::Branch(_) if next == size => return None,
                    // The callee does not return.
                    Flow::Call if next == size => break,
                    Flow::Next | Flow::Branch(_) | Flow::Call => at = next,
                    Flow::Return | Flow::Leave => {
                        self.ends = true;
                        break;
                    }
                    Flow::Jump(_) | Flow::Trap => break,
                }
                if matches!(flow, Flow::Branch(_)) {
                    self.leaders.insert(at);
                }
            }
        }
        Some(())
    }

    /// Passes the state before each instruction to `each`, in the order of the offsets. Returns `None` if this needs too many
    /// steps.
    pub fn states<M: Machine<Instruction = I>>(
        &self,
        machine: &mut M,
        rows: &Rows,
        entry: &dyn Fn(u64) -> Option<State>,
        each: &mut dyn FnMut(&mut M, u64, &I, Flow, &State),
    ) -> Option<()> {
        let mut before: BTreeMap<u64, State> = BTreeMap::new();
        let mut work: BTreeSet<u64> = BTreeSet::new();
        for &at in &self.entries {
            if let Some(state) = entry(at) {
                before.insert(at, state);
                work.insert(at);
            }
        }
        let mut steps = 0;
        while let Some(leader) = work.pop_first() {
            let Some(state) = before.get(&leader).cloned() else { continue };
            self.block(
                machine,
                rows,
                leader,
                state,
                &mut |_, _, _, _, _| {
                    steps += 1;
                },
                &mut |at, state| {
                    let changed = match before.get_mut(&at) {
                        Some(known) => known.join(state),
                        None => before.insert(at, state.clone()).is_none(),
                    };
                    if changed {
                        work.insert(at);
                    }
                },
            );
            if steps > STEPS_MAX {
                return None;
            }
        }
        for (&leader, state) in &before {
            self.block(machine, rows, leader, state.clone(), each, &mut |_, _| {});
        }
        Some(())
    }

    /// Follows the code from a leader to the next leader. Passes each instruction at which control may continue to `to`.
    fn block<M: Machine<Instruction = I>>(
        &self,
        machine: &mut M,
        rows: &Rows,
        leader: u64,
        mut state: State,
        each: &mut dyn FnMut(&mut M, u64, &I, Flow, &State),
        to: &mut dyn FnMut(u64, &State),
    ) {
        let mut at = leader;
        while let Some(Node { instruction, size, flow }) = self.nodes.get(&at) {
            each(machine, at, instruction, *flow, &state);
            machine.apply(instruction, &mut state);
            let sp = state.get(M::SP);
            state.framed |= matches!(sp, Value::Cfa(sp) if sp < -M::ENTRY) || matches!(state.get(M::FP), Value::Cfa(_));
            if let Flow::Branch(target) | Flow::Jump(target) = *flow {
                if self.nodes.contains_key(&target) {
                    to(target, &state);
                }
            }
            at += size;
            match flow {
                Flow::Next | Flow::Branch(_) => {}
                Flow::Call => takes_arguments::<M>(rows, at, &mut state),
                Flow::Jump(_) | Flow::Return | Flow::Leave | Flow::Trap => return,
            }
            if self.leaders.contains(&at) {
                to(at, &state);
                return;
            }
        }
    }
}

/// In some runtimes for x86-64, callees remove their arguments from the stack. If a row begins exactly after the call and
/// describes a frame, it shows this.
fn takes_arguments<M: Machine>(rows: &Rows, at: u64, state: &mut State) {
    let said = rows.at(at).filter(|row| row.start == at).and_then(|row| row.cfa);
    if let (Some((from, offset)), Value::Cfa(sp)) = (said, state.get(M::SP)) {
        if M::ENTRY != 0 && from == M::SP && (M::ENTRY + 1..-sp).contains(&offset) {
            state.set(M::SP, Value::Unknown);
        }
    }
}
