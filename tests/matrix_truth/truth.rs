//! Reads the truth of the matrix's program, and checks that it does not contradict itself.

use std::collections::{BTreeMap, HashMap};

/// Code at an address for a time.
#[derive(Clone, Debug)]
pub struct Code {
    pub addr: u64,
    pub size: u64,
    pub from: u64,
    /// `u64::MAX`: to the end.
    pub to: u64,
    pub name: String,
    pub lines: Vec<Line>,
}

#[derive(Clone, Debug)]
pub struct Line {
    pub offset: u64,
    pub line: u32,
    pub file: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Code, by its number from 1.
    Id(usize),
    C(String),
    AnyC,
}

/// A stack that stood for a time; innermost first.
#[derive(Clone, Debug)]
pub struct Run {
    pub tid: u64,
    pub from: u64,
    pub to: u64,
    pub stack: Vec<Frame>,
}

impl Run {
    pub fn ids(&self) -> impl Iterator<Item = usize> + '_ {
        self.stack.iter().filter_map(|frame| if let Frame::Id(id) = frame { Some(*id) } else { None })
    }
}

#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub pid: u64,
    pub paths: HashMap<String, String>,
    pub options: HashMap<String, String>,
    pub codes: Vec<Code>,
    pub runs: Vec<Run>,
    pub unnamed: Vec<Run>,
    pub aliases: Vec<(usize, String)>,
    pub hot_lines: Vec<(usize, u32)>,
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("number {text:?}"))
}

fn hex(text: &str) -> u64 {
    assert!(!text.bytes().any(|byte| byte.is_ascii_uppercase()), "{text:?}");
    u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("hexadecimal number {text:?}"))
}

fn frame(text: &str) -> Frame {
    match text.strip_prefix('*') {
        Some(name) => Frame::C(name.into()),
        None if text == "?" => Frame::AnyC,
        None => Frame::Id(number(text) as usize),
    }
}

impl Truth {
    pub fn parse(text: &str) -> Self {
        assert!(text.len() < 4 << 20, "a truth of {} bytes", text.len());
        let body = text.strip_suffix("end\n").expect("the end of the truth");
        let mut truth = Truth::default();
        for line in body.lines() {
            truth.parse_line(&line.split('\t').collect::<Vec<_>>());
        }
        truth
    }

    fn parse_line(&mut self, fields: &[&str]) {
        match *fields {
            ["pid", pid] => self.pid = number(pid),
            ["path", what, path] => assert!(self.paths.insert(what.into(), path.into()).is_none()),
            ["option", key, value] => assert!(self.options.insert(key.into(), value.into()).is_none()),
            ["code", id, addr, size, from, to, name] => {
                self.codes.push(Code {
                    addr: hex(addr),
                    size: hex(size),
                    from: number(from),
                    to: if to == "0" { u64::MAX } else { number(to) },
                    name: name.into(),
                    lines: Vec::new(),
                });
                assert_eq!(number(id) as usize, self.codes.len(), "code is numbered from 1");
            }
            ["run", tid, from, to, stack] => {
                let stack = stack.split(',').map(frame).collect();
                self.runs.push(Run { tid: number(tid), from: number(from), to: number(to), stack });
            }
            ["unnamed", tid, from, to] => {
                self.unnamed.push(Run { tid: number(tid), from: number(from), to: number(to), stack: Vec::new() });
            }
            ["alias", id, name] => self.aliases.push((number(id) as usize, name.into())),
            ["line", id, offset, line, file] => {
                let line = Line { offset: hex(offset), line: number(line) as u32, file: file.into() };
                self.codes[number(id) as usize - 1].lines.push(line);
            }
            ["hotline", id, line] => self.hot_lines.push((number(id) as usize, number(line) as u32)),
            _ => panic!("the truth has a line {fields:?}"),
        }
    }

    /// What must hold for any scenario.
    pub fn check(&self) {
        assert!(self.pid > 0);
        assert!(["fp", "dwarf", "both", "none"].contains(&&*self.options["unwind"]), "{:?}", self.options);
        assert!(["yes", "no"].contains(&&*self.options["gap"]), "{:?}", self.options);
        self.check_codes();
        self.check_runs();
        for (id, _) in &self.aliases {
            assert!((1..=self.codes.len()).contains(id));
        }
    }

    /// No address belongs to two pieces of code at one time.
    fn check_codes(&self) {
        let mut events = Vec::new();
        for (at, code) in self.codes.iter().enumerate() {
            assert!(code.size > 0 && code.from > 0 && code.from < code.to && !code.name.is_empty(), "{code:?}");
            assert!(code.lines.windows(2).all(|pair| pair[0].offset < pair[1].offset), "{code:?}");
            assert!(code.lines.iter().all(|line| line.offset < code.size && line.line > 0), "{code:?}");
            events.push((code.from, true, at));
            events.push((code.to, false, at));
        }
        // What ends in the very nanosecond in which other code begins is gone.
        events.sort();
        let mut live: BTreeMap<u64, &Code> = BTreeMap::new();
        for (_, begins, at) in events {
            let code = &self.codes[at];
            if !begins {
                live.remove(&code.addr);
                continue;
            }
            let before = live.range(..code.addr + code.size).next_back();
            if let Some((_, before)) = before {
                assert!(before.addr + before.size <= code.addr, "{code:?} lies over {before:?}");
            }
            live.insert(code.addr, code);
        }
    }

    /// Each thread runs one stack at a time, of code that is there all the while.
    fn check_runs(&self) {
        assert!(self.runs.len() >= 20, "only {} runs", self.runs.len());
        let mut last = HashMap::new();
        let mut times: Vec<&Run> = self.runs.iter().chain(&self.unnamed).collect();
        // The order of the lines is that of each thread's time; between runs and the rest it is not looked at.
        for list in [&self.runs, &self.unnamed] {
            let mut last = HashMap::new();
            assert!(list.iter().all(|run| last.insert(run.tid, run.from) < Some(run.from)), "order of the lines");
        }
        times.sort_by_key(|run| run.from);
        for run in times {
            assert!(run.from < run.to, "{run:?}");
            let before = last.insert(run.tid, run.to);
            assert!(before <= Some(run.from), "{run:?} begins before {before:?}");
        }
        for run in &self.runs {
            assert!(matches!(run.stack.first(), Some(Frame::Id(_))), "code is innermost: {run:?}");
            assert_eq!(run.stack.last(), Some(&Frame::AnyC), "the driver is outermost: {run:?}");
            for frame in &run.stack {
                match frame {
                    Frame::Id(id) => {
                        let code = &self.codes[id - 1];
                        assert!(code.from <= run.from && run.to <= code.to, "{code:?} does not live in {run:?}");
                    }
                    Frame::C(name) => assert!(["sort_in_c", "call_in_c"].contains(&&**name), "{run:?}"),
                    Frame::AnyC => {}
                }
            }
        }
    }
}
