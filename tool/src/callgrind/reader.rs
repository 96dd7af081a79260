//! Reads a callgrind file line by line, and restores names and positions that the file abbreviates.
//!
//! The format is described in valgrind's manual (Callgrind Format Specification). Where the manual does not specify the
//! behaviour, this reader behaves like `callgrind_annotate` and KCachegrind. Positions, including those of targets, are
//! relative to the last line that begins with a position. A call without a file or object has the file or object of the
//! preceding line.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};

use super::text::{Text, Texts};
use crate::text::shortened;

/// callgrind's name for an unknown object or file.
pub const UNKNOWN: &[u8] = b"???";
/// The longest line, in bytes.
const LINE_MAX: u64 = 16 << 20;
/// Subpositions: instruction, basic block, line.
const COLUMNS: usize = 3;

/// A function. Functions of the same name in different objects or files are different functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub object: Text,
    pub file: Text,
    pub name: Text,
}

/// The function and file in which costs arise. Inlined code has a different file than its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub function: Function,
    pub file: Text,
}

/// A position: one number for each column.
pub type At = [u64; COLUMNS];

/// The meaning of the numbers in a line.
#[derive(Clone, Debug)]
pub struct Columns {
    pub count: usize,
    pub instruction: Option<usize>,
    pub line: Option<usize>,
    /// The names of the events. A line has one cost for each.
    pub events: Vec<String>,
}

impl Default for Columns {
    fn default() -> Self {
        Columns { count: 1, instruction: None, line: Some(0), events: Vec::new() }
    }
}

/// The meaning of a line or of two lines.
pub enum Entry<'a> {
    /// A line that describes no cost, call or jump.
    Other(&'a [u8]),
    /// A line after which the costs of a part begin.
    Part(&'a [u8], &'a Columns),
    /// The cost of a place itself, without the cost of calls.
    Cost(Place, At, &'a [u8]),
    /// Calls from a place to a function: their number and their total cost.
    Call { place: Place, count: &'a [u8], to: Function, target: At, at: At, costs: &'a [u8] },
    /// A jump from one place to another.
    Jump { place: Place, how: &'a [u8], to: Place, target: At, at: At },
}

/// A call or jump whose position is in the next line.
enum Waiting {
    Call { count: Vec<u8>, to: Function, target: At },
    Jump { how: Vec<u8>, to: Place, target: At },
}

/// The state that earlier lines have set.
struct State<'t> {
    texts: &'t mut Texts,
    /// Names of objects, files and functions, by their numbers.
    names: [HashMap<u64, Text>; 3],
    columns: Columns,
    unknown: Text,
    object: Option<Text>,
    function_file: Option<Text>,
    file: Option<Text>,
    function: Option<Text>,
    /// The object, file and function of the next call.
    called: [Option<Text>; 3],
    /// The file and function of the next jump.
    jumped: [Option<Text>; 2],
    at: At,
    sums: Vec<u64>,
    /// Whether the reader has read the beginning of a part, but not the end.
    is_open: bool,
    is_callgrinds: bool,
}

pub(super) fn damaged(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// The pid in the header of a file, if there is one.
pub fn pid(input: &mut dyn BufRead) -> io::Result<Option<u32>> {
    let mut line = Vec::new();
    loop {
        line.clear();
        let more = input.take(LINE_MAX).read_until(b'\n', &mut line)? > 0;
        if let Some(pid) = line.strip_prefix(b"pid:") {
            return Ok(number(pid.trim_ascii()).and_then(|pid| pid.try_into().ok()));
        }
        if !more || line.starts_with(b"events:") {
            return Ok(None);
        }
    }
}

/// Receives the meaning of lines, and the number of bytes read so far.
pub type Visit<'v> = &'v mut dyn FnMut(&mut Texts, Entry, u64) -> io::Result<()>;

/// Reads the whole input. Fails if the input is not a complete callgrind file, or if the costs of a part do not add up to the
/// total at its end.
pub fn read(input: &mut dyn BufRead, texts: &mut Texts, visit: Visit) -> io::Result<()> {
    let unknown = texts.add(UNKNOWN);
    let mut state = State {
        texts,
        names: Default::default(),
        columns: Columns::default(),
        unknown,
        object: None,
        function_file: None,
        file: None,
        function: None,
        called: [None; 3],
        jumped: [None; 2],
        at: At::default(),
        sums: Vec::new(),
        is_open: false,
        is_callgrinds: false,
    };
    let (mut line, mut waiting, mut count, mut bytes) = (Vec::new(), None, 0u64, 0);
    loop {
        line.clear();
        let size = input.take(LINE_MAX).read_until(b'\n', &mut line)? as u64;
        if size == 0 {
            break;
        }
        count += 1;
        bytes += size;
        if size == LINE_MAX {
            return Err(damaged(format!("line {count} is longer than {LINE_MAX} bytes")));
        }
        let problem = |text: String| damaged(format!("line {count}: {text}"));
        state.line(line.strip_suffix(b"\n").unwrap_or(&line), bytes, &mut waiting, visit).map_err(
            |error| match error {
                Problem::Io(error) => error,
                Problem::Other => damaged("is no file of callgrind"),
                Problem::Text(text) => problem(text),
            },
        )?;
    }
    if count == 0 {
        return Err(damaged("is empty"));
    }
    if state.columns.events.is_empty() {
        return Err(damaged("is no file of callgrind"));
    }
    if waiting.is_some() || (state.is_open && state.is_callgrinds) {
        return Err(damaged("is not whole: its end is missing"));
    }
    Ok(())
}

enum Problem {
    Io(io::Error),
    /// The file is not a callgrind file.
    Other,
    Text(String),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Problem::Io(error)
    }
}

fn wrong<T>(text: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Text(text.into()))
}

impl State<'_> {
    fn line(&mut self, whole: &[u8], bytes: u64, waiting: &mut Option<Waiting>, visit: Visit) -> Result<(), Problem> {
        let (in_body, line) = (!self.columns.events.is_empty(), whole.trim_ascii_end());
        match line.first() {
            None if in_body => return Ok(()),
            None | Some(b'#') => return Ok(visit(self.texts, Entry::Other(whole), bytes)?),
            Some(b'0'..=b'9' | b'+' | b'-' | b'*') if in_body => {
                let rest = self.position(line, true)?;
                let (at, place) = (self.at, self.place()?);
                let entry = match waiting {
                    None => {
                        self.costs(rest, true)?;
                        Entry::Cost(place, at, rest)
                    }
                    Some(Waiting::Call { count, to, target }) => {
                        self.costs(rest, false)?;
                        Entry::Call { place, count, to: *to, target: *target, at, costs: rest }
                    }
                    Some(Waiting::Jump { how, to, target }) => {
                        if !rest.is_empty() {
                            return wrong("a jump has no costs");
                        }
                        Entry::Jump { place, how, to: *to, target: *target, at }
                    }
                };
                visit(self.texts, entry, bytes)?;
                *waiting = None;
                return Ok(());
            }
            _ => {}
        }
        if waiting.is_some() {
            return wrong("a position was expected after the line with calls or jumps");
        }
        let split = |at: u8| {
            line.iter().position(|&byte| byte == at).map(|at| (&line[..at], line[at + 1..].trim_ascii_start()))
        };
        if let Some((key, rest)) = split(b'=') {
            if self.specification(key, rest, waiting)? {
                return Ok(());
            }
        }
        let Some((key, rest)) = split(b':') else {
            return if in_body { wrong(format!("'{}' is not known", shortened(line))) } else { Err(Problem::Other) };
        };
        match key {
            b"positions" => self.columns = columns(rest).ok_or(Problem::Text("positions of an unknown kind".into()))?,
            b"events" => {
                self.begin(rest)?;
                return Ok(visit(self.texts, Entry::Part(line, &self.columns), bytes)?);
            }
            b"totals" => self.end(rest)?,
            b"creator" => self.is_callgrinds = rest.starts_with(b"callgrind-"),
            b"version" if !matches!(number(rest), Some(0 | 1)) => {
                return wrong("a version of the format that is not known")
            }
            b"version" | b"pid" | b"thread" | b"part" | b"cmd" | b"desc" | b"event" | b"summary" => {}
            _ if in_body => return wrong(format!("'{}' is not known", shortened(line))),
            // Other producers write additional kinds of lines.
            _ if key.iter().all(|byte| byte.is_ascii_alphanumeric() || b" _-".contains(byte)) => {}
            _ => return Err(Problem::Other),
        }
        Ok(visit(self.texts, Entry::Other(whole), bytes)?)
    }

    /// Begins a part: sets its events.
    fn begin(&mut self, events: &[u8]) -> Result<(), Problem> {
        let words = events.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        self.columns.events = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if self.columns.events.is_empty() {
            return wrong("no events");
        }
        self.sums = vec![0; self.columns.events.len()];
        (self.object, self.function_file, self.file, self.function) = (None, None, None, None);
        (self.called, self.jumped, self.at, self.is_open) = ([None; 3], [None; 2], At::default(), true);
        Ok(())
    }

    /// Ends a part. The part's total must be the sum of its costs.
    fn end(&mut self, totals: &[u8]) -> Result<(), Problem> {
        let found = std::mem::take(&mut self.sums);
        self.sums = vec![0; found.len()];
        self.costs(totals, true)?;
        if self.sums != found {
            let text = |costs: &[u64]| costs.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            return wrong(format!("the costs are {} in all, and not {}", text(&found), text(&self.sums)));
        }
        self.is_open = false;
        Ok(())
    }

    fn place(&self) -> Result<Place, Problem> {
        let Some(name) = self.function else { return wrong("costs of no function") };
        let (object, file) = (self.object.unwrap_or(self.unknown), self.function_file.unwrap_or(self.unknown));
        Ok(Place { function: Function { object, file, name }, file: self.file.unwrap_or(file) })
    }

    /// Reads `ob=`, `fn=` and the like. Returns whether the line is one of these.
    fn specification(&mut self, key: &[u8], rest: &[u8], waiting: &mut Option<Waiting>) -> Result<bool, Problem> {
        match key {
            b"ob" => self.object = Some(self.name(0, rest)?),
            b"fl" => {
                self.function_file = Some(self.name(1, rest)?);
                self.file = self.function_file;
            }
            b"fi" | b"fe" => self.file = Some(self.name(1, rest)?),
            b"fn" => self.function = Some(self.name(2, rest)?),
            b"cob" => self.called[0] = Some(self.name(0, rest)?),
            b"cfi" | b"cfl" => self.called[1] = Some(self.name(1, rest)?),
            b"cfn" => self.called[2] = Some(self.name(2, rest)?),
            b"jfi" => self.jumped[0] = Some(self.name(1, rest)?),
            b"jfn" => self.jumped[1] = Some(self.name(2, rest)?),
            b"calls" | b"jump" | b"jcnd" => *waiting = Some(self.association(key, rest)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a call or jump, whose position is in the next line.
    fn association(&mut self, key: &[u8], rest: &[u8]) -> Result<Waiting, Problem> {
        let (count, target) = rest.split_at(rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len()));
        let mut counts = count.splitn(if key == b"jcnd" { 2 } else { 1 }, |&byte| byte == b'/');
        if !counts.all(|count| number(count).is_some()) {
            return wrong(format!("'{}' is no number of calls or jumps", shortened(count)));
        }
        let here = self.at;
        if !self.position(target, false)?.is_empty() {
            return wrong("more than the place of a target");
        }
        let (target, here) = (std::mem::replace(&mut self.at, here), self.place()?);
        if key == b"calls" {
            let [object, file, name] = std::mem::take(&mut self.called);
            let Some(name) = name else { return wrong("calls of no function") };
            let to = Function { object: object.unwrap_or(here.function.object), file: file.unwrap_or(here.file), name };
            return Ok(Waiting::Call { count: count.to_vec(), to, target });
        }
        let [file, name] = std::mem::take(&mut self.jumped);
        let function = Function { name: name.unwrap_or(here.function.name), ..here.function };
        let to = Place { function, file: file.unwrap_or(here.file) };
        Ok(Waiting::Jump { how: [key, b"=", count].concat(), to, target })
    }

    /// Reads a name, a number that stands for a name, or both.
    fn name(&mut self, kind: usize, rest: &[u8]) -> Result<Text, Problem> {
        let numbered = rest.strip_prefix(b"(").and_then(|rest| {
            let end = rest.iter().position(|&byte| byte == b')')?;
            let is_number = end > 0 && rest[..end].iter().all(u8::is_ascii_digit);
            Some((number(rest.get(..end).filter(|_| is_number)?)?, rest[end + 1..].trim_ascii_start()))
        });
        let name = |texts: &mut Texts, name: &[u8]| texts.add(if name.is_empty() { UNKNOWN } else { name });
        let Some((number, rest)) = numbered else { return Ok(name(self.texts, rest)) };
        if rest.is_empty() {
            let known = self.names[kind].get(&number).copied();
            return known.ok_or_else(|| Problem::Text(format!("there is no name with the number {number}")));
        }
        let name = name(self.texts, rest);
        self.names[kind].insert(number, name);
        Ok(name)
    }

    /// Reads a position at the start of the line, and returns the rest of the line.
    fn position<'l>(&mut self, line: &'l [u8], before_costs: bool) -> Result<&'l [u8], Problem> {
        let mut rest = line.trim_ascii_start();
        for at in &mut self.at[..self.columns.count] {
            let (word, after) = rest.split_at(rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len()));
            let place = match word.split_first() {
                Some((b'*', [])) => Some(*at),
                Some((b'+', more)) => number(more).and_then(|more| at.checked_add(more)),
                Some((b'-', less)) => number(less).and_then(|less| at.checked_sub(less)),
                _ => number(word),
            };
            let what = if before_costs { "costs" } else { "a target" };
            *at = place.ok_or_else(|| Problem::Text(format!("'{}' is no position of {what}", shortened(word))))?;
            rest = after.trim_ascii_start();
        }
        Ok(rest)
    }

    /// Checks costs, and adds them to the costs of the part.
    fn costs(&mut self, costs: &[u8], are_own: bool) -> Result<(), Problem> {
        let mut sums = self.sums.iter_mut();
        for word in costs.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
            let Some(cost) = number(word) else { return wrong(format!("'{}' is no cost", shortened(word))) };
            let Some(sum) = sums.next() else { return wrong("more costs than events") };
            if are_own {
                let Some(more) = sum.checked_add(cost) else { return wrong("the costs do not fit in 64 bits") };
                *sum = more;
            }
        }
        Ok(())
    }
}

/// Returns the columns that `positions:` names, which must be in the order that the format requires.
fn columns(words: &[u8]) -> Option<Columns> {
    let mut columns = Columns { count: 0, line: None, ..Columns::default() };
    let mut block = None;
    for word in words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        let column = match word {
            b"instr" | b"addr" => &mut columns.instruction,
            b"bb" => &mut block,
            b"line" => &mut columns.line,
            _ => return None,
        };
        if column.replace(columns.count).is_some() {
            return None;
        }
        columns.count += 1;
    }
    (columns.count > 0).then_some(columns)
}

/// A number, hexadecimal after `0x`.
pub(super) fn number(word: &[u8]) -> Option<u64> {
    let (digits, radix) = word.strip_prefix(b"0x").map_or((word, 10), |digits| (digits, 16));
    // A sign is not part of a number.
    digits.first().filter(|digit| digit.is_ascii_alphanumeric())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}
