//! The functions of the program that a process executes, by address and by name.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use object::{Object, ObjectSegment, ObjectSymbol, SymbolKind};

use crate::{Mapping, Tid};

/// Functions by where they begin, with their end.
#[derive(Clone, Debug, Default)]
pub struct Symbols(BTreeMap<u64, (u64, String)>);

impl Symbols {
    /// Those of a process, which has these mappings.
    pub fn of_program(pid: Tid, maps: &[Mapping]) -> Result<Self> {
        let path = std::fs::read_link(format!("/proc/{pid}/exe"))?;
        let bytes = std::fs::read(format!("/proc/{pid}/exe")).with_context(|| format!("{}", path.display()))?;
        let file = object::File::parse(&*bytes)?;
        let first = file.segments().map(|segment| segment.address()).min().context("a program without segments")?;
        let begin = maps.iter().find(|mapping| mapping.path == path).context("the program is not mapped")?;
        let base = begin.range.start - first / 4096 * 4096;
        let functions = file.symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
        let entry = |symbol: object::Symbol| {
            let begin = base + symbol.address();
            Some((begin, (begin + symbol.size(), symbol.name().ok()?.to_string())))
        };
        Ok(Symbols(functions.filter_map(entry).collect()))
    }

    /// Where a function begins.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(_, (_, other))| other == name).map(|(begin, _)| *begin)
    }

    /// The function that has an address.
    pub fn name(&self, addr: u64) -> Option<&str> {
        let (_, (end, name)) = self.0.range(..=addr).next_back()?;
        (addr < *end).then_some(name)
    }
}
