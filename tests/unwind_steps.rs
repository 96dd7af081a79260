//! Unwind tables at run time: the ground-truth program is executed instruction by instruction, and at each one that lies in
//! registered code the frames that the jitdump's tables lead to, from the real registers and the real stack, are those that
//! the calls have made.
//!
//! What the calls have made is known by following them: a call leaves a return address at the new stack pointer, with which
//! the caller's frame, its place of return and its registers are known, until the stack pointer is above it again.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use crate::cfi::{self, Cfa, Decoded, Dumped, Rule, State};
use crate::perf;
use crate::support::{checker, compile, scratch_dir, Link, TmpFiles};
use jitsym_step::{Change, Event, Registers, Shadow, Tid, Tracer, KEPT, RSP};
use object::{Object, ObjectSymbol};

const RETURN_ADDRESS: u16 = 16;

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
    tracer: Tracer,
    pid: Tid,
    tables: Tables,
    calls: Shadow,
    seen: Seen,
}

/// Those of `KEPT` and the stack pointer, by DWARF numbers.
fn registers(from: &Registers) -> [u64; 16] {
    let mut registers = [0; 16];
    let kept = [from.rbx, from.rbp, from.r12, from.r13, from.r14, from.r15];
    KEPT.iter().zip(kept).for_each(|(&number, value)| registers[usize::from(number)] = value);
    registers[usize::from(RSP)] = from.rsp;
    registers
}

impl Walk {
    /// The address of a function of the program.
    fn function(&self, program: &Path, name: &str) -> u64 {
        let file = std::fs::read(program).expect("read the program");
        let file = object::File::parse(&*file).expect("an ELF file");
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).expect("a symbol");
        self.tracer.entry(self.pid).expect("an entry") - file.entry() + symbol.address()
    }

    /// Follows a function from its entry until it has returned.
    fn follow(&mut self) {
        self.calls.clear();
        self.calls.entered(&mut self.tracer, self.pid).expect("a call");
        while !self.calls.frames().is_empty() {
            let before = self.tracer.registers(self.pid).expect("registers");
            self.check(&before);
            self.step();
            let last = self.calls.frames().last().copied().expect("a call");
            let change = self.calls.stepped(&mut self.tracer, self.pid).expect("a step");
            self.seen.steps += 1;
            // Were this not so, the program would not keep to what it has promised to its caller.
            assert!(!matches!(change, Change::Left | Change::Switched), "{change:?} at {:#x}", before.rip);
            if change == Change::Returned {
                let now = self.tracer.registers(self.pid).expect("registers");
                assert_eq!((now.rsp, now.rip), (last.cfa, last.return_address), "a return");
                let kept = registers(&now);
                KEPT.iter().for_each(|&it| assert_eq!(kept[usize::from(it)], last.registers[usize::from(it)]));
            }
        }
    }

    /// One instruction of the program's thread. The library's own thread runs meanwhile.
    fn step(&mut self) {
        self.tracer.step(self.pid).expect("a step");
        loop {
            match self.tracer.wait().expect("an event") {
                Event::Stepped { tid } if tid == self.pid => return,
                event => self.tracer.go_on(event).expect("go on"),
            }
        }
    }

    /// Runs to the next breakpoint, or (`false`) to the end.
    fn run(&mut self) -> bool {
        self.tracer.resume(self.pid).expect("resume");
        loop {
            match self.tracer.wait().expect("an event") {
                Event::Breakpoint { .. } => return true,
                Event::Done => return false,
                event => self.tracer.go_on(event).expect("go on"),
            }
        }
    }

    /// Unwinds from registered code up to the first frame that is of other code.
    fn check(&mut self, now: &Registers) {
        if self.tables.find(now.rip).is_none() {
            return;
        }
        self.seen.inside += 1;
        self.seen.places.insert(now.rip);
        // What was popped still lies below the stack pointer.
        let from = now.rsp - 128;
        let mut stack = Stack { from, bytes: vec![0; (self.calls.frames()[0].cfa - from) as usize] };
        let len = self.tracer.read(self.pid, from, &mut stack.bytes).expect("the stack");
        assert_eq!(len, stack.bytes.len());
        let (mut values, mut pc, mut depth) = (registers(now), now.rip, 0);
        for frame in self.calls.frames().iter().rev() {
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

/// A program that writes its jitdump to this directory, stopped at its start. What it prints is in the file `truth` there.
fn start(mut command: Command, dir: &Path) -> (Walk, TmpFiles) {
    // A tracee that does not get to its end shall leave nothing behind.
    command
        .env("JITSYM_SPOOL", "off")
        .env("JITSYM_DIR", dir)
        .stdout(std::fs::File::create(dir.join("truth")).expect("a file for the truth"));
    let tracer = Tracer::spawn(command).expect("start the program");
    let pid = tracer.pid();
    let path = dir.join(format!("jit-{pid}.dump"));
    let tables = Tables { path, len: 0, code: Vec::new(), known: HashMap::new() };
    (Walk { tracer, pid, tables, calls: Shadow::default(), seen: Seen::default() }, TmpFiles(pid as u32))
}

/// Follows each call of a function until the program has ended, and returns what it has printed.
fn follow_all(walk: &mut Walk, program: &Path, function: &str, dir: &Path) -> String {
    let addr = walk.function(program, function);
    walk.tracer.set_breakpoint(walk.pid, addr).expect("a breakpoint");
    while walk.run() {
        walk.tables.update();
        walk.follow();
    }
    assert!(walk.tracer.status().is_some_and(|status| status.success()), "{:?}", walk.tracer.status());
    let Seen { steps, inside, frames, deepest, .. } = &walk.seen;
    println!("{steps} instructions, {inside} in registered code, {frames} frames, {deepest} at a time");
    std::fs::read_to_string(dir.join("truth")).expect("the truth")
}

/// Trampolines with and without stack arguments, between which are frames of C.
#[test]
fn trampolines() {
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = compile("gcc", &["c-tests/trampolines/interpreter.c"], Link::Shared, &flags, "stepped-interpreter");
    let dir = scratch_dir("trampolines");
    let mut command = perf::command(&program);
    command.arg(&dir).arg("once").env("JITSYM", "jitdump");
    let (mut walk, _files) = start(command, &dir);
    let printed = follow_all(&mut walk, &program, "run", &dir);
    assert!(printed.ends_with("ok\n"), "{printed}");
    // Seven instructions without words. Each word takes two more, and the room for words one.
    assert_eq!(walk.seen.places.len(), 7 + 12 + 14 + 12);
    checker::assert_sound(&walk.tables.path, &[]);
    std::fs::remove_dir_all(dir).expect("remove the files");
}

#[test]
fn every_instruction() {
    let program = perf::program();
    let dir = scratch_dir("walk");
    let mut command = perf::command(program);
    command.arg(format!("dir={}", dir.display())).args(["scenario=walk", "sinks=jitdump", "count=600"]);
    let (mut walk, _files) = start(command, &dir);
    let truth = perf::Truth::parse(&follow_all(&mut walk, program, "run_slice", &dir));
    let Seen { inside, frames, deepest, places, .. } = &walk.seen;
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
