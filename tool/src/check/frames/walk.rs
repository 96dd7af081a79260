//! Goes through the instructions of a function along its control flow, and finds the state before each of them.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::Rows;
use super::state::{State, Value};

/// Where control goes after an instruction. Targets count from the start of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the next one.
    Next,
    /// There or to the next one.
    Branch(u64),
    /// There.
    Jump(u64),
    /// To other code and back.
    Call,
    /// Back to the caller.
    Return,
    /// Anywhere.
    Leave,
    /// It does not come back.
    Trap,
}

/// One architecture.
pub(super) trait Machine {
    type Instruction: Clone;
    /// The stack pointer.
    const SP: u16;
    /// The frame pointer.
    const FP: u16;
    /// CFA minus stack pointer where a call leads to.
    const ENTRY: i64;

    /// The instruction at an offset, and its size; `None` if there is none that a function can have.
    fn decode(&mut self, code: &[u8], at: u64) -> Option<(Self::Instruction, u64, Flow)>;
    /// What it does.
    fn apply(&mut self, instruction: &Self::Instruction, state: &mut State);
    /// It does nothing.
    fn is_no_op(&self, instruction: &Self::Instruction) -> bool;
    /// As disassemblers show it.
    fn text(&mut self, instruction: &Self::Instruction) -> String;
}

/// More instructions, and more steps through them, are not looked at.
const INSTRUCTIONS_MAX: usize = 200_000;
const STEPS_MAX: usize = 2_000_000;

/// An instruction that can be reached.
struct Node<I> {
    instruction: I,
    size: u64,
    flow: Flow,
}

/// All instructions that can be reached.
pub(super) struct Graph<I> {
    nodes: BTreeMap<u64, Node<I>>,
    /// Where one gets from more than one place, or from elsewhere than from the instruction before.
    leaders: BTreeSet<u64>,
    /// Where functions begin.
    entries: Vec<u64>,
    /// One of them returns, or goes elsewhere.
    ends: bool,
}

impl<I: Clone> Graph<I> {
    /// From the start of the code, and from further entries that `entered` is asked about if nothing leads there. `None` if what
    /// is there is no function as a whole: bytes that are no instructions, control that runs off the end or never gets out.
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
        // A return and nothing else tells nothing.
        (apart && graph.ends && graph.nodes.len() > 1).then_some(graph)
    }

    fn add<M: Machine<Instruction = I>>(&mut self, machine: &mut M, code: &[u8], entry: u64) -> Option<()> {
        let size = code.len() as u64;
        let mut work = vec![entry];
        self.leaders.insert(entry);
        self.entries.push(entry);
        while let Some(mut at) = work.pop() {
            // There has been nothing but no-ops since a call, which need not have come back.
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
                    // The callee does not come back.
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

    /// The state before each instruction, in the order of the offsets. `None` if that takes too long.
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

    /// From a leader to the next one. `to` is told where control goes from there.
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

/// Callees of some runtimes for x86-64 take their arguments off the stack. A row that begins exactly after the call says so,
/// unless it says that there is no frame at all.
fn takes_arguments<M: Machine>(rows: &Rows, at: u64, state: &mut State) {
    let said = rows.at(at).filter(|row| row.start == at).and_then(|row| row.cfa);
    if let (Some((from, offset)), Value::Cfa(sp)) = (said, state.get(M::SP)) {
        if M::ENTRY != 0 && from == M::SP && (M::ENTRY + 1..-sp).contains(&offset) {
            state.set(M::SP, Value::Unknown);
        }
    }
}
