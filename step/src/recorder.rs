//! Records a program by stepping: a sample for each instruction, or for each on each path of calls, and what has to be seen of
//! it.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{channel, Receiver, Sender};
use std::thread::JoinHandle;

use anyhow::{anyhow, bail, Context, Result};

use crate::kernel_events::Listener;
use crate::recording::{Frames, Graph, Recording, Sample};
use crate::symbols::Symbols;
use crate::{Event, Kind, Registers, Shadow, Tid, Tracer};

/// What is to be recorded, and how.
pub struct Plan<'a> {
    /// What is to run.
    pub program: Command,
    /// A perf that reports what the kernel says, up to and with `record`.
    pub perf: Command,
    /// How readers find callers.
    pub graph: Graph,
    /// Functions of the program. A thread is stepped from when it enters one until it returns.
    pub enter: &'a [&'a str],
    /// Whether an instruction gets a sample each time that it is executed, and not only the first time on each path of calls.
    pub every: bool,
    /// A function of the program, at whose beginning the recording ends. The program lives on until [`Recorded::held`] is dropped.
    pub hold: Option<&'a str>,
    /// Where it is written. What the program prints is in `program.out` beside it, and there are other files.
    pub data: &'a Path,
}

/// A sample, as it has to be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub time: u64,
    /// The instruction, which was not executed yet.
    pub ip: u64,
    /// Addresses within the calls that have not returned, up to that in the function that was entered: all of them, or those that
    /// can be seen by frame pointers. Code that has none of its own at this instruction hides its caller.
    pub callers: Option<Vec<u64>>,
}

/// What was recorded.
pub struct Recorded {
    /// All samples, in the order of time.
    pub moments: Vec<Moment>,
    /// Functions of the program.
    pub symbols: Symbols,
    /// The program, if it was to be held.
    pub held: Option<Held>,
}

/// A program that waits for the end of its standard input. It goes on when this is dropped, which waits for its end.
pub struct Held {
    input: Option<ChildStdin>,
    tracer: Option<JoinHandle<()>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.tracer.take().map(JoinHandle::join);
    }
}

enum Message {
    Started(u32, Option<ChildStdin>),
    Ended(Result<Box<Done>>),
}

/// Runs the program to its end, or until it is to be held. One that fails is an error.
pub fn record(plan: Plan) -> Result<Recorded> {
    let Plan { mut program, perf, graph, enter, every, hold, data } = plan;
    let dir = data.parent().context("no directory")?;
    let log = dir.join("program.log");
    program.stdin(if hold.is_some() { Stdio::piped() } else { Stdio::null() });
    program.stdout(File::create(dir.join("program.out"))?).stderr(File::create(&log)?);
    let (tell, told) = channel();
    let (go, wait) = channel();
    let order = Order {
        graph,
        enter: enter.iter().map(|name| name.to_string()).collect(),
        every,
        hold: hold.map(String::from),
        data: data.into(),
    };
    // A tracer is a thread, which must have no other children.
    let tracer = std::thread::spawn(move || order.run(program, &tell, &wait));
    let next = || told.recv().map_err(|_| anyhow!("the tracer has panicked"));
    let (pid, input) = match next()? {
        Message::Started(pid, input) => (pid, input),
        Message::Ended(ended) => return Err(ended.err().unwrap_or_else(|| anyhow!("nothing has run"))),
    };
    let listener = Listener::start(perf, pid, graph, dir)?;
    let _ = go.send(());
    let Message::Ended(ended) = next()? else { bail!("started twice") };
    let Done { moments, symbols, mut file, status } = *ended?;
    if let Some(status) = status.filter(|status| !status.success()) {
        bail!("the program: {status}: {}", std::fs::read_to_string(&log)?);
    }
    let held = status.is_none().then(|| Held { input, tracer: Some(tracer) });
    // Behind the samples: readers sort by time.
    listener.finish()?.iter().try_for_each(|event| file.event(event))?;
    file.finish()?;
    Ok(Recorded { moments, symbols, held })
}

/// What the tracer comes to. Without a status the program is held.
struct Done {
    moments: Vec<Moment>,
    symbols: Symbols,
    file: Recording,
    status: Option<ExitStatus>,
}

/// What the tracer's thread is to do.
struct Order {
    graph: Graph,
    enter: Vec<String>,
    every: bool,
    hold: Option<String>,
    data: PathBuf,
}

impl Order {
    fn run(self, program: Command, tell: &Sender<Message>, go: &Receiver<()>) {
        let mut tracer = match Tracer::spawn(program) {
            Ok(tracer) => tracer,
            Err(error) => {
                let _ = tell.send(Message::Ended(Err(error.into())));
                return;
            }
        };
        let _ = tell.send(Message::Started(tracer.pid() as u32, tracer.child().stdin.take()));
        if go.recv().is_err() {
            return;
        }
        let done = Stepping::new(&mut tracer, &self).and_then(|stepping| stepping.run(&mut tracer));
        let is_held = done.as_ref().is_ok_and(|done| done.status.is_none());
        let _ = tell.send(Message::Ended(done.map(Box::new)));
        if is_held {
            let _ = tracer.let_go();
        }
    }
}

/// A thread within a function that it was to be stepped in.
struct Walk {
    /// Where the function's return address is.
    base: u64,
    shadow: Shadow,
    /// Where it stood last, and where it was interrupted by signals, by the canonical frame addresses of their handlers.
    last: u64,
    interrupted: HashMap<u64, u64>,
    /// Paths with an instruction, of which there are samples.
    seen: HashSet<u64>,
}

impl Walk {
    /// Addresses in the callers, from the innermost on.
    fn callers(&self) -> Vec<u64> {
        let mut callers = Vec::new();
        for frame in self.shadow.frames().iter().rev() {
            match frame.kind {
                Kind::Call => callers.push(frame.return_address - 1),
                // The handler returns to code of the C library.
                Kind::Signal { .. } => {
                    callers.push(frame.return_address);
                    callers.extend(self.interrupted.get(&frame.cfa));
                }
            }
        }
        callers
    }
}

struct Stepping {
    graph: Graph,
    enter: Vec<u64>,
    every: bool,
    hold: Option<u64>,
    file: Recording,
    symbols: Symbols,
    walks: HashMap<Tid, Walk>,
    moments: Vec<Moment>,
    /// Code that is of no interest, by process.
    libraries: HashMap<Tid, Vec<Range<u64>>>,
}

impl Stepping {
    fn new(tracer: &mut Tracer, order: &Order) -> Result<Self> {
        let pid = tracer.pid();
        let symbols = Symbols::of_program(pid, &tracer.maps(pid)?)?;
        let address = |name: &String| symbols.address(name).with_context(|| format!("the program has no {name}"));
        let stepping = Stepping {
            graph: order.graph,
            enter: order.enter.iter().map(address).collect::<Result<_>>()?,
            every: order.every,
            hold: order.hold.as_ref().map(address).transpose()?,
            file: Recording::create(&order.data, order.graph)?,
            symbols,
            walks: HashMap::new(),
            moments: Vec::new(),
            libraries: HashMap::new(),
        };
        stepping.watch(tracer, pid)?;
        Ok(stepping)
    }

    fn watch(&self, tracer: &mut Tracer, pid: Tid) -> Result<()> {
        let all = self.enter.iter().chain(&self.hold);
        all.copied().try_for_each(|addr| tracer.set_breakpoint(pid, addr)).context("a breakpoint")
    }

    fn run(mut self, tracer: &mut Tracer) -> Result<Done> {
        tracer.resume(tracer.pid())?;
        loop {
            match tracer.wait()? {
                Event::Breakpoint { addr, .. } if Some(addr) == self.hold => break,
                Event::Breakpoint { tid, .. } => {
                    if !self.walks.contains_key(&tid) {
                        self.enter(tracer, tid)?;
                    }
                    self.stand(tracer, tid)?;
                }
                Event::Stepped { tid } => {
                    if let Some(walk) = self.walks.get_mut(&tid) {
                        walk.shadow.stepped(tracer, tid)?;
                    }
                    self.stand(tracer, tid)?;
                }
                Event::Handler { tid, .. } => {
                    if let Some(walk) = self.walks.get_mut(&tid) {
                        walk.shadow.signalled(tracer, tid)?;
                        walk.interrupted.extend(walk.shadow.frames().last().map(|frame| (frame.cfa, walk.last)));
                    }
                    self.stand(tracer, tid)?;
                }
                Event::Signal { tid, .. } if self.walks.contains_key(&tid) => tracer.step(tid)?,
                Event::Forked { pid, by, shares_memory } => {
                    if !shares_memory {
                        self.watch(tracer, pid)?;
                    }
                    tracer.resume(pid)?;
                    tracer.resume(by)?;
                }
                Event::ThreadExited { tid, .. } => drop(self.walks.remove(&tid)),
                Event::Exited { pid, .. } => drop(self.walks.remove(&pid)),
                Event::Done => break,
                event => tracer.go_on(event)?,
            }
        }
        Ok(Done { moments: self.moments, symbols: self.symbols, file: self.file, status: tracer.status() })
    }

    fn enter(&mut self, tracer: &mut Tracer, tid: Tid) -> Result<()> {
        let pid = tracer.pid_of(tid).context("a thread of no process")?;
        let is_library = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.contains(".so") && !name.starts_with("jit") || name == "[vdso]"
        };
        let maps = tracer.maps(pid)?.into_iter().filter(|mapping| mapping.executable && is_library(&mapping.path));
        self.libraries.insert(pid, maps.map(|mapping| mapping.range).collect());
        let Registers { rsp: base, rip: last, .. } = tracer.registers(tid)?;
        let mut shadow = Shadow::default();
        shadow.returned(tracer, tid)?;
        self.walks.insert(tid, Walk { base, shadow, last, interrupted: HashMap::new(), seen: HashSet::new() });
        Ok(())
    }

    /// Takes a sample, unless there is one of this instruction on this path that is enough, and goes on.
    fn stand(&mut self, tracer: &mut Tracer, tid: Tid) -> Result<()> {
        let registers = tracer.registers(tid)?;
        let Some(walk) = self.walks.get_mut(&tid) else { return Ok(tracer.resume(tid)?) };
        if registers.rsp > walk.base {
            self.walks.remove(&tid);
            return Ok(tracer.resume(tid)?);
        }
        walk.last = registers.rip;
        let pid = tracer.pid_of(tid).context("a thread of no process")?;
        let libraries = self.libraries.get(&pid).map(Vec::as_slice).unwrap_or_default();
        if !libraries.iter().any(|range| range.contains(&registers.rip)) {
            let callers = walk.callers();
            let mut hasher = DefaultHasher::new();
            (registers.rip, &callers).hash(&mut hasher);
            if walk.seen.insert(hasher.finish()) || self.every {
                self.sample(tracer, tid, &registers, callers)?;
            }
        }
        Ok(tracer.step(tid)?)
    }

    fn sample(&mut self, tracer: &Tracer, tid: Tid, registers: &Registers, callers: Vec<u64>) -> Result<()> {
        let pid = tracer.pid_of(tid).context("a thread of no process")?;
        let mut callers = Some(callers);
        let frames = match self.graph {
            Graph::Stack(size) => {
                let mut bytes = vec![0; size];
                let read = tracer.read(pid, registers.rsp, &mut bytes)?;
                bytes.truncate(read);
                Frames::Stack(bytes)
            }
            Graph::FramePointers => {
                // The caller of the function whose frame it is, and all that are outside of it.
                let open = self.walks[&tid].shadow.frames();
                let seen = open.iter().rev().position(|frame| frame.cfa == registers.rbp.wrapping_add(16));
                callers = callers.zip(seen).map(|(all, seen)| all[seen..].to_vec());
                Frames::Chain(chain(tracer, pid, registers.rbp))
            }
        };
        let (pid, tid, time) = (pid as u32, tid as u32, crate::now());
        self.file.sample(&Sample { pid, tid, time, registers, frames })?;
        self.moments.push(Moment { pid, tid, time, ip: registers.rip, callers });
        Ok(())
    }
}

/// What the kernel finds by frame pointers.
fn chain(tracer: &Tracer, pid: Tid, mut frame: u64) -> Vec<u64> {
    const MOST: usize = 127;
    let mut chain = Vec::new();
    while chain.len() < MOST {
        let (Ok(next), Ok(return_addr)) = (tracer.word(pid, frame), tracer.word(pid, frame.wrapping_add(8))) else {
            break;
        };
        chain.push(return_addr);
        frame = next;
    }
    chain
}
