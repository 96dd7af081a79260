//! `jitsym callgrind`: names the compiled code in a callgrind file, which has only addresses of this code.
//!
//! If callgrind has no symbol for the code at an address, it names the function `0x0000000004a2c100`, in the object and file
//! `???`. The number is the address at which the function was entered. This command does not change costs, so it cannot
//! separate costs that callgrind has added up. This affects code that had the same address one after the other, and functions
//! that are entered by a jump (tail calls). The command reports both cases.

mod code;
mod reader;
mod text;
mod writer;

use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, Write};
use std::rc::Rc;

pub use code::Code;
use code::Found;
pub use reader::pid;
use reader::{At, Columns, Entry, Function, Place, UNKNOWN};
pub use text::{Text, Texts};
use writer::Writer;

/// If an address has contained several pieces of code, its label has at most this number of names.
const NAMES: usize = 3;

/// The report about the copy.
#[derive(Default)]
pub struct Summary {
    /// Addresses of functions that now have names.
    pub named: BTreeSet<u64>,
    /// Addresses of functions that have no names.
    pub unnamed: BTreeSet<u64>,
    /// The event whose costs are reported.
    pub event: String,
    pub total: u64,
    pub named_cost: u64,
    pub unnamed_cost: u64,
    /// The labels of functions whose costs are those of several pieces of code.
    pub shared: BTreeSet<String>,
    /// Tail calls. Each has the function, the function that it jumps to, and the cost of the target, which is counted for the
    /// first function.
    pub tail_calls: Vec<(String, String, u64)>,
}

/// A function with its names and code.
struct Known {
    function: Function,
    /// The name of the function without the names of its callers.
    label: Text,
    /// The address at which the function was entered, if callgrind had no name for it.
    entry: Option<u64>,
    found: Option<Found>,
}

struct Rewriter<'a, W> {
    code: &'a Code,
    /// The source of the names, for the header.
    names_of: &'a str,
    writer: Writer<W>,
    columns: Columns,
    unknown: Text,
    known: HashMap<Function, Rc<Known>>,
    summary: Summary,
    tail_calls: HashMap<(Text, Text), u64>,
}

/// Copies a callgrind file, and names the functions that are in `code`. `texts` contains their names. `names_of` is the
/// source of the names, for the header. `progress` is called with the number of bytes done.
pub fn rewrite<W: Write>(
    input: &mut dyn BufRead,
    code: &Code,
    texts: &mut Texts,
    names_of: &str,
    progress: &mut dyn FnMut(u64),
    out: W,
) -> io::Result<(Summary, W)> {
    let mut rewriter = Rewriter {
        code,
        names_of,
        writer: Writer::new(out),
        columns: Columns::default(),
        unknown: texts.add(UNKNOWN),
        known: HashMap::new(),
        summary: Summary::default(),
        tail_calls: HashMap::new(),
    };
    reader::read(input, texts, &mut |texts, entry, done| {
        progress(done);
        rewriter.entry(texts, entry)
    })?;
    let Rewriter { writer, mut summary, tail_calls, .. } = rewriter;
    let shown = |text| String::from_utf8_lossy(texts.get(text)).into_owned();
    summary.tail_calls = tail_calls.into_iter().map(|((from, to), cost)| (shown(from), shown(to), cost)).collect();
    summary.tail_calls.sort_by(|a, b| b.2.cmp(&a.2).then(a.cmp(b)));
    Ok((summary, writer.finish()?))
}

impl<W: Write> Rewriter<'_, W> {
    fn entry(&mut self, texts: &mut Texts, entry: Entry) -> io::Result<()> {
        match entry {
            Entry::Other(line) => self.writer.line(line),
            Entry::Part(line, columns) => {
                self.columns = columns.clone();
                self.summary.event = columns.events.first().cloned().unwrap_or_default();
                self.writer.part(columns);
                self.writer.line(format!("desc: Names: {}", self.names_of).as_bytes())?;
                self.writer.line(line)
            }
            Entry::Cost(place, at, costs) => {
                let known = self.known(texts, place.function);
                self.count(&known, at, costs);
                let (file, at) = self.line(&known, place.file, at, false);
                self.writer.cost(texts, Place { function: known.function, file }, at, costs)
            }
            Entry::Call { place, count, to, target, at, costs } => {
                let known = self.known(texts, place.function);
                let callee = self.known(texts, to);
                let (_, target) = self.line(&callee, to.file, target, true);
                let (file, at) = self.line(&known, place.file, at, false);
                let place = Place { function: known.function, file };
                self.writer.call(texts, place, callee.function, count, target, at, costs)
            }
            Entry::Jump { place, how, to, target, at } => {
                let known = self.known(texts, place.function);
                let aim = self.known(texts, to.function);
                let (to_file, target) = self.line(&aim, to.file, target, false);
                let (file, at) = self.line(&known, place.file, at, false);
                let place = Place { function: known.function, file };
                self.writer.jump(texts, place, Place { function: aim.function, file: to_file }, how, target, at)
            }
        }
    }

    /// Looks a function up. The names of callers and the depth of a recursion may follow its name, each after an apostrophe
    /// (`--separate-callers`, `--separate-recs`).
    fn known(&mut self, texts: &mut Texts, function: Function) -> Rc<Known> {
        if let Some(known) = self.known.get(&function) {
            return known.clone();
        }
        let (mut new, name) = (function, texts.get(function.name).to_vec());
        let (mut entry, mut found, mut parts) = (None, None, Vec::new());
        for (number, part) in name.split(|&byte| byte == b'\'').enumerate() {
            // The object of a caller is not known. In an object other than `???`, addresses are relative to the object's
            // file.
            let address = if number == 0 && function.object != self.unknown { None } else { address(part) };
            let code = address.and_then(|address| self.code.entered(address));
            parts.push(match &code {
                Some(code) => self.label(texts, code),
                None => part.to_vec(),
            });
            if number == 0 {
                (entry, found) = (address, code);
            }
        }
        new.name = texts.add(&parts.join(&b'\''));
        if let Some(found) = &found {
            new.object = self.code.object(found);
            new.file = self.code.file(found).unwrap_or(self.unknown);
        }
        if let Some(entry) = entry {
            (if found.is_some() { &mut self.summary.named } else { &mut self.summary.unnamed }).insert(entry);
        }
        let known = Rc::new(Known { function: new, label: texts.add(&parts[0]), entry, found });
        self.known.insert(function, known.clone());
        known
    }

    /// The label of code. If several pieces of code had the address, the label has all of their names.
    fn label(&mut self, texts: &Texts, found: &Found) -> Vec<u8> {
        let names = self.code.names(found);
        let mut label = names.iter().take(NAMES).map(|&name| texts.get(name)).collect::<Vec<_>>().join(&b" or "[..]);
        if names.len() > NAMES {
            label.extend_from_slice(format!(" or {} more", names.len() - NAMES).as_bytes());
        }
        if names.len() > 1 {
            self.summary.shared.insert(String::from_utf8_lossy(&label).into_owned());
        }
        label
    }

    /// The file and line of a position in a function, or of the address at which the function was entered.
    fn line(&self, known: &Known, file: Text, mut at: At, is_entry: bool) -> (Text, At) {
        let Some(entry) = known.entry else { return (file, at) };
        let address = self.columns.instruction.map(|column| at[column]).or(is_entry.then_some(entry));
        let inside = |address| known.found.as_ref().filter(|found| self.code.has(found, address)).cloned();
        let found = address.and_then(|address| Some((inside(address).or_else(|| self.code.at(address))?, address)));
        let (file, line) = match found.and_then(|(found, address)| self.code.line(&found, address)) {
            Some(line) => line,
            None if known.found.is_none() => return (file, at),
            None => (known.function.file, 0),
        };
        if let Some(column) = self.columns.line {
            at[column] = line;
        }
        (file, at)
    }

    /// Adds a cost to the summary.
    fn count(&mut self, known: &Known, at: At, costs: &[u8]) {
        let first = costs.split(u8::is_ascii_whitespace).next().unwrap_or_default();
        let cost = reader::number(first).unwrap_or_default();
        self.summary.total = self.summary.total.wrapping_add(cost);
        if known.entry.is_none() {
            return;
        }
        let summary = &mut self.summary;
        let sum = if known.found.is_some() { &mut summary.named_cost } else { &mut summary.unnamed_cost };
        *sum = sum.wrapping_add(cost);
        let Some(address) = self.columns.instruction.map(|column| at[column]) else { return };
        if known.found.as_ref().is_some_and(|found| self.code.has(found, address)) {
            return;
        }
        let Some(other) = self.code.at(address).filter(|other| other.is_one) else { return };
        let name = self.code.names(&other)[0];
        // A function may consist of several pieces of code.
        if name != known.label {
            let sum = self.tail_calls.entry((known.label, name)).or_default();
            *sum = sum.wrapping_add(cost);
        }
    }
}

/// The address in the name of a function.
fn address(name: &[u8]) -> Option<u64> {
    name.starts_with(b"0x").then(|| reader::number(name)).flatten()
}
