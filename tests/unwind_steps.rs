//! Unwind tables at run time: the ground-truth program is executed instruction by instruction, and at each one that lies in
//! registered code the frames that the jitdump's tables lead to, from the real registers and the real stack, are those that
//! the calls have made.
//!
//! What the calls have made is known by following them: a call leaves a return address at the new stack pointer, with which
//! the caller's frame, its place of return and its registers are known, until the stack pointer is above it again.

#[path = "support/cfi.rs"]
mod cfi;
#[path = "support/perf.rs"]
mod perf;
mod support;
#[path = "unwind_steps/tracee.rs"]
mod tracee;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;

use cfi::{Cfa, Decoded, Dumped, Rule, State};
use support::{checker, scratch_dir, TmpFiles};
use tracee::Tracee;

/// What a function has to leave as it is: rbx, rbp, r12 to r15, by their DWARF numbers.
const KEPT: [u16; 6] = [3, 6, 12, 13, 14, 15];
const RSP: u16 = 7;
const RETURN_ADDRESS: u16 = 16;

/// Values of the registers by DWARF numbers, those of `KEPT` and the stack pointer.
type Registers = [u64; 16];

/// A call that has not returned.
struct Frame {
    /// The stack pointer before the call instruction, and where it returns to.
    cfa: u64,
    return_address: u64,
    /// The registers at the call.
    registers: Registers,
}

/// The tables of the jitdump as far as it is written.
struct Tables {
    path: PathBuf,
    len: u64,
    code: Vec<(Dumped, Decoded)>,
    /// What was looked up: the index in `code`, and the state there.
    known: HashMap<u64, Option<(usize, Rc<State>)>>,
}

impl Tables {
    /// Reads the dump if it has grown.
    fn update(&mut self) {
        let file = std::fs::read(&self.path).expect("jitdump");
        if file.len() as u64 != self.len {
            self.len = file.len() as u64;
            self.known.clear();
            let decoded = |code: Dumped| {
                let decoded = code.decoded().expect("sound tables").expect("tables");
                (code, decoded)
            };
            self.code = cfi::read_dump(&*file).into_iter().map(decoded).collect();
        }
    }

    /// What the newest code at an address says of it.
    fn find(&mut self, pc: u64) -> Option<(usize, Rc<State>)> {
        let code = &self.code;
        self.known
            .entry(pc)
            .or_insert_with(|| {
                let index = code.iter().rposition(|(code, _)| code.range().contains(&pc))?;
                let (code, decoded) = &code[index];
                let state = decoded.at(pc - code.addr).expect("sound tables");
                let state = state.unwrap_or_else(|| panic!("nothing is said of {pc:#x}"));
                Some((index, Rc::new(state.clone())))
            })
            .clone()
    }
}

/// The bottom of the stack, as it was read.
struct Stack {
    from: u64,
    bytes: Vec<u8>,
}

impl Stack {
    fn word(&self, addr: u64) -> u64 {
        let at = addr.wrapping_sub(self.from) as usize;
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_le_bytes(*word.unwrap_or_else(|| panic!("{addr:#x} is not in the stack from {:#x}", self.from)))
    }
}

/// What was seen on the way.
#[derive(Default)]
struct Seen {
    /// Instructions, those in registered code, and frames that were compared.
    steps: u64,
    inside: u64,
    frames: u64,
    /// The most frames of registered code in one piece.
    deepest: usize,
    /// Addresses in registered code.
    places: HashSet<u64>,
}

struct Walk {
    tracee: Tracee,
    tables: Tables,
    calls: Vec<Frame>,
    seen: Seen,
}

fn registers(from: &libc::user_regs_struct) -> Registers {
    let mut registers = [0; 16];
    let kept = [from.rbx, from.rbp, from.r12, from.r13, from.r14, from.r15];
    KEPT.iter().zip(kept).for_each(|(&number, value)| registers[usize::from(number)] = value);
    registers[usize::from(RSP)] = from.rsp;
    registers
}

impl Walk {
    /// Follows a function from its entry until it has returned.
    fn follow(&mut self) {
        let mut before = self.tracee.registers();
        self.call(&before);
        loop {
            self.check(&before);
            self.tracee.step();
            self.seen.steps += 1;
            let now = self.tracee.registers();
            while let Some(frame) = self.calls.last().filter(|frame| frame.cfa <= now.rsp) {
                // Were this not so, the program would not keep to what it has promised to its caller.
                assert_eq!((now.rsp, now.rip), (frame.cfa, frame.return_address), "a return");
                let kept = registers(&now);
                KEPT.iter().for_each(|&it| assert_eq!(kept[usize::from(it)], frame.registers[usize::from(it)]));
                self.calls.pop();
            }
            if self.calls.is_empty() {
                return;
            }
            // Whatever instruction has stored the address behind itself is a call.
            if now.rsp == before.rsp - 8 && (2..=7).contains(&self.tracee.word(now.rsp).wrapping_sub(before.rip)) {
                self.call(&now);
            }
            before = now;
        }
    }

    fn call(&mut self, now: &libc::user_regs_struct) {
        let return_address = self.tracee.word(now.rsp);
        self.calls.push(Frame { cfa: now.rsp + 8, return_address, registers: registers(now) });
    }

    /// Unwinds from registered code up to the first frame that is of other code.
    fn check(&mut self, now: &libc::user_regs_struct) {
        if self.tables.find(now.rip).is_none() {
            return;
        }
        self.seen.inside += 1;
        self.seen.places.insert(now.rip);
        // What was popped still lies below the stack pointer.
        let from = now.rsp - 128;
        let mut stack = Stack { from, bytes: vec![0; (self.calls[0].cfa - from) as usize] };
        self.tracee.read(from, &mut stack.bytes);
        let (mut values, mut pc, mut depth) = (registers(now), now.rip, 0);
        for frame in self.calls.iter().rev() {
            let Some((index, state)) = self.tables.find(pc) else { break };
            let place = || {
                let start = self.tables.code[index].0.addr;
                format!("{start:#x}+{} (frame {depth} from {:#x}), {state:?}", pc - start, now.rip)
            };
            let Cfa::From(register, offset) = state.cfa else { panic!("CFA at {}", place()) };
            let known = register == RSP || KEPT.contains(&register);
            assert!(known, "CFA from a register that is nobody's at {}", place());
            let cfa = values[usize::from(register)].wrapping_add_signed(offset);
            assert_eq!(cfa, frame.cfa, "CFA at {}", place());
            let value = |number: u16| match state.rules.get(&number) {
                Some(Rule::At(offset)) => Some(stack.word(cfa.wrapping_add_signed(*offset))),
                None | Some(Rule::Same) if number != RETURN_ADDRESS => Some(values[usize::from(number)]),
                _ => None,
            };
            assert_eq!(value(RETURN_ADDRESS), Some(frame.return_address), "return address at {}", place());
            for number in KEPT {
                let kept = frame.registers[usize::from(number)];
                assert_eq!(value(number), Some(kept), "register {number} at {}", place());
            }
            // The call instruction ends where the return address points to.
            (values, pc) = (frame.registers, frame.return_address - 1);
            values[usize::from(RSP)] = cfa;
            depth += 1;
            self.seen.frames += 1;
        }
        self.seen.deepest = self.seen.deepest.max(depth);
    }
}

#[test]
fn every_instruction() {
    let program = perf::program();
    let dir = scratch_dir("walk");
    let output = dir.join("truth");
    let mut command = perf::command(program);
    command.arg(format!("dir={}", dir.display())).args(["scenario=walk", "sinks=jitdump", "count=600"]);
    // A tracee that does not get to its end shall leave nothing behind.
    command
        .env("JITSYM_SPOOL", "off")
        .env("JITSYM_DIR", &dir)
        .stdout(std::fs::File::create(&output).expect("a file for the truth"));
    let tracee = Tracee::start(&mut command, program);
    let _files = TmpFiles(tracee.pid());
    let path = dir.join(format!("jit-{}.dump", tracee.pid()));
    let run_slice = tracee.function(program, "run_slice");
    let tables = Tables { path, len: 0, code: Vec::new(), known: HashMap::new() };
    let mut walk = Walk { tracee, tables, calls: Vec::new(), seen: Seen::default() };
    while walk.tracee.run_to(run_slice) {
        walk.tables.update();
        walk.follow();
    }

    let truth = perf::Truth::parse(&std::fs::read_to_string(&output).expect("the truth"));
    let Seen { steps, inside, frames, deepest, places } = &walk.seen;
    println!("{steps} instructions, {inside} in registered code, {frames} frames, {deepest} at a time");
    assert!(*inside > 20_000 && frames > inside && *deepest > 5, "too little was seen");
    // All functions, at the places that they were moved to as well, from their first byte to their return.
    for place in &truth.places {
        let seen = places.iter().filter(|&&pc| place.contains(pc)).count();
        assert!(place.moved || seen >= 3, "{} was hardly seen at {:#x}", place.name, place.addr);
    }
    assert!(truth.places.iter().any(|place| place.moved && places.contains(&place.addr)), "no moved code was seen");
    checker::assert_sound(&walk.tables.path, &[]);
    std::fs::remove_dir_all(dir).expect("remove the files");
}
