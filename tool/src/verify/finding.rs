//! The findings of `jitsym verify`, and their output.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::check::report::json_string;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Unregistered,
    Late,
    Address,
    Size,
    Bytes,
    Tables,
    NoRow,
    Cfa,
    ReturnAddress,
    SavedRegister,
}

impl Kind {
    /// The name of the kind, which does not change between versions.
    pub fn id(self) -> &'static str {
        match self {
            Kind::Unregistered => "unregistered",
            Kind::Late => "late",
            Kind::Address => "address",
            Kind::Size => "size",
            Kind::Bytes => "bytes",
            Kind::Tables => "tables",
            Kind::NoRow => "no-row",
            Kind::Cfa => "cfa",
            Kind::ReturnAddress => "return-address",
            Kind::SavedRegister => "saved-register",
        }
    }
}

/// A fault at one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: Kind,
    /// The function, or its caller if the function has no name.
    pub function: String,
    /// The offset from the start of the function.
    pub offset: u64,
    pub addr: u64,
    /// The instruction at this address.
    pub instruction: String,
    pub said: String,
    pub is: String,
    pub change: String,
    /// The file that describes the function.
    pub file: String,
}

/// The maximum number of findings that are printed: of one kind in one function, and of all.
const OF_ONE: usize = 8;
const TOLD: usize = 100;

/// All findings. Each function, offset and kind is reported only once.
#[derive(Debug, Default)]
pub struct Findings {
    all: Vec<Finding>,
    counts: HashMap<(Kind, String), usize>,
    seen: std::collections::HashSet<(Kind, String, u64)>,
    /// The number of findings that are not printed.
    more: usize,
}

impl Findings {
    pub fn add(&mut self, finding: Finding) {
        if !self.seen.insert((finding.kind, finding.function.clone(), finding.offset)) {
            return;
        }
        let count = self.counts.entry((finding.kind, finding.function.clone())).or_default();
        *count += 1;
        if *count > OF_ONE || self.all.len() >= TOLD {
            self.more += 1;
        } else {
            self.all.push(finding);
        }
    }

    /// Whether the function has findings of this kind.
    pub fn has(&self, kind: Kind, function: &str) -> bool {
        self.counts.contains_key(&(kind, function.to_owned()))
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn len(&self) -> usize {
        self.all.len() + self.more
    }

    /// Sorts by kind, function and offset.
    pub fn sort(&mut self) {
        self.all.sort_by(|a, b| (a.kind, &a.function, a.offset).cmp(&(b.kind, &b.function, b.offset)));
    }
}

/// The amount of examined code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub processes: usize,
    /// The number of registered functions, of those with tables, and of those that were entered.
    pub registered: usize,
    pub with_tables: usize,
    pub entered: usize,
    /// The number of instructions in the entered functions that were compared, the number of instructions whose tables were
    /// right, and the number of comparisons.
    pub instructions: usize,
    pub proved: usize,
    pub comparisons: u64,
    /// Calls with an unknown frame: their code was entered by a jump, and did not return while it was stepped.
    pub jumps: u64,
    pub steps: u64,
}

/// Writes the findings as text.
pub fn text(findings: &Findings, coverage: &Coverage, ended: &str, out: &mut dyn Write) -> io::Result<()> {
    for finding in &findings.all {
        let Finding { kind, function, offset, addr, instruction, said, is, change, file } = finding;
        writeln!(out, "{}: {function}+{offset:#x} ({addr:#x}): {instruction}", kind.id())?;
        writeln!(out, "    said: {said}")?;
        writeln!(out, "    is:   {is}")?;
        writeln!(out, "    do:   {change}")?;
        if !file.is_empty() {
            writeln!(out, "    in:   {file}")?;
        }
    }
    if findings.more > 0 {
        writeln!(out, "and {} more of these kinds", findings.more)?;
    }
    let Coverage { registered, with_tables, entered, instructions, proved, jumps, steps, processes, .. } = coverage;
    let found = match findings.len() {
        0 if coverage.entered == 0 => "nothing was compared".to_owned(),
        0 => "nothing is wrong".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let of = if *processes > 1 { format!(" in {processes} processes") } else { String::new() };
    writeln!(
        out,
        "{found}; functions registered{of}: {registered} (with tables: {with_tables}), entered: {entered}; instructions compared: \
         {instructions} (tables are right: {proved}), stepped: {steps}"
    )?;
    if *jumps > 0 {
        writeln!(
            out,
            "entered by a jump, and not seen to return to where the tables say: {jumps}; these count as not compared"
        )?;
    }
    writeln!(out, "the command {ended}")
}

/// Writes the findings as JSON.
pub fn json(findings: &Findings, coverage: &Coverage, ended: &str, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{{\"findings\":[")?;
    for (number, finding) in findings.all.iter().enumerate() {
        let Finding { kind, function, offset, addr, instruction, said, is, change, file } = finding;
        write!(out, "{}\n{{\"kind\":{}", if number > 0 { "," } else { "" }, json_string(kind.id()))?;
        write!(out, ",\"function\":{},\"offset\":{offset},\"addr\":{addr}", json_string(function))?;
        let texts = [("instruction", instruction), ("said", said), ("is", is), ("change", change), ("file", file)];
        for (name, text) in texts {
            write!(out, ",\"{name}\":{}", json_string(text))?;
        }
        write!(out, "}}")?;
    }
    let Coverage { registered, with_tables, entered, instructions, proved, comparisons, jumps, steps, processes } =
        coverage;
    writeln!(
        out,
        "\n],\"more\":{},\"processes\":{processes},\"registered\":{registered},\"with_tables\":{with_tables},\
         \"entered\":{entered},\"instructions\":{instructions},\"proved\":{proved},\"comparisons\":{comparisons},\"jumps\":{jumps},\
         \"steps\":{steps},\"ended\":{}}}",
        findings.more,
        json_string(ended)
    )
}
