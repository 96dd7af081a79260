//! The rows of unwind tables, relative to the start of the code.

use std::collections::BTreeSet;

use gimli::{CfaRule, RegisterRule};

use crate::tables::{Fde, Row as TableRow};

/// Where the caller's value of a register is, according to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// In memory, at this distance from the CFA.
    At(i64),
    /// In another register.
    In(u16),
    /// In the same register, whether or not the row has a rule for it.
    Same,
    /// Undefined, or given by an expression.
    Elsewhere,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub start: u64,
    pub end: u64,
    /// The register, and the offset that is added to it. `None` for an expression.
    pub cfa: Option<(u16, i64)>,
    /// Whether the return address is signed.
    pub signed: bool,
    rules: Vec<(u16, Where)>,
}

impl Row {
    fn new(row: &TableRow, base: u64) -> Row {
        let cfa = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Some((register.0, offset)),
            CfaRule::Expression(_) => None,
        };
        let mut signed = false;
        let rules = row.registers().filter_map(|(register, rule)| {
            let place = match *rule {
                RegisterRule::Offset(offset) => Where::At(offset),
                RegisterRule::Register(other) => Where::In(other.0),
                RegisterRule::SameValue => Where::Same,
                // Only RA_SIGN_STATE of AArch64 is a number.
                RegisterRule::Constant(value) => {
                    signed = value & 1 != 0;
                    return None;
                }
                _ => Where::Elsewhere,
            };
            Some((register.0, place))
        });
        let rules = rules.collect();
        let offset = |address: u64| address.wrapping_sub(base);
        Row { start: offset(row.start_address()), end: offset(row.end_address()), cfa, signed, rules }
    }

    pub fn rule(&self, register: u16) -> Where {
        self.rules().find(|&(said, _)| said == register).map_or(Where::Same, |(_, place)| place)
    }

    pub fn rules(&self) -> impl Iterator<Item = (u16, Where)> + '_ {
        self.rules.iter().copied()
    }
}

/// The maximum number of rows and rules that are kept for one piece of code. Hostile tables can have any number.
const RULES_MAX: usize = 1 << 20;

/// The rows of one piece of code.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Sorted by start.
    rows: Vec<Row>,
    /// The starts of entries.
    pub(super) entries: Vec<u64>,
    /// The column of the return address.
    pub(crate) return_address: u16,
    /// The size of the code in bytes.
    size: u64,
    /// The entry of the last row.
    last: Option<usize>,
    /// The number of rows and rules so far.
    held: usize,
}

impl Rows {
    /// Empty rows for code of this size.
    pub fn new(size: u64) -> Rows {
        Rows { rows: Vec::new(), entries: Vec::new(), return_address: u16::MAX, size, last: None, held: 0 }
    }

    /// Adds a row of an entry. The code begins at `base`. Rows outside of the code are ignored.
    pub fn push(&mut self, base: u64, fde: &Fde, row: &TableRow) {
        if row.start_address().wrapping_sub(base) >= self.size || self.held > RULES_MAX {
            return;
        }
        let row = Row::new(row, base);
        self.held += 1 + row.rules.len();
        if self.last.replace(fde.offset()) != Some(fde.offset()) {
            self.entries.push(row.start);
        }
        self.return_address = fde.cie().return_address_register().0;
        self.rows.push(row);
    }

    /// All rows, sorted. `None` if there are none, or too many.
    pub(crate) fn complete(mut self) -> Option<Rows> {
        self.rows.sort_by_key(|row| row.start);
        self.entries.sort_unstable();
        (!self.rows.is_empty() && self.held <= RULES_MAX).then_some(self)
    }

    /// The row for an offset.
    pub(crate) fn at(&self, offset: u64) -> Option<&Row> {
        let after = self.rows.partition_point(|row| row.start <= offset);
        self.rows.get(after.checked_sub(1)?).filter(|row| offset < row.end)
    }

    /// Whether an earlier row has another CFA.
    pub(super) fn differs_before(&self, row: &Row) -> bool {
        self.rows.iter().take_while(|earlier| earlier.start < row.start).any(|earlier| earlier.cfa != row.cfa)
    }

    /// Whether any row computes the CFA from this register.
    pub(super) fn count_from(&self, register: u16) -> bool {
        self.rows.iter().any(|row| row.cfa.is_some_and(|(from, _)| from == register))
    }

    /// All words of the stack that the rows refer to.
    pub(super) fn places(&self) -> BTreeSet<i64> {
        let rules = self.rows.iter().flat_map(Row::rules);
        rules.filter_map(|(_, place)| if let Where::At(at) = place { Some(at) } else { None }).collect()
    }
}
