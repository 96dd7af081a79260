//! Draws addresses over time as a picture of characters.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// How to draw the picture.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The width of the terminal in columns.
    pub width: usize,
    /// Whether the terminal has colours, and characters other than ASCII.
    pub terminal: bool,
}

/// A range of code, and the time from which it exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub time: u64,
    pub start: u64,
    pub end: u64,
}

/// The height of the picture in lines.
const ROWS: usize = 20;
/// Unused gaps of at least this number of bytes are left out.
const GAP: u64 = 64 * 1024;
/// The width of the label before each line: an address and two spaces.
const LABEL: usize = 20;

/// A range of addresses without large gaps.
#[derive(Clone, Copy)]
struct Area {
    start: u64,
    end: u64,
    rows: usize,
}

impl Area {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// The addresses of one row of the area.
    fn row(&self, row: usize) -> (u64, u64) {
        let at = |row: usize| self.start + (u128::from(self.len()) * row as u128 / self.rows as u128) as u64;
        (at(row), at(row + 1))
    }
}

/// A character of the picture.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Bytes that are used for the first time.
    fresh: u64,
    /// Bytes that were used before.
    again: u64,
}

/// Draws all addresses that ever had code. Time increases from left to right. `seconds` is given if the times are
/// nanoseconds. First prints how much of the code replaced earlier code.
pub(super) fn write(mut blocks: Vec<Block>, seconds: Option<&str>, look: Look, out: &mut dyn Write) -> io::Result<()> {
    blocks.retain(|block| block.start < block.end);
    blocks.sort_by_key(|block| block.time);
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(()) };
    let (from, span) = (first.time, last.time - first.time);
    let areas = areas(&blocks);
    let rows: usize = areas.iter().map(|area| area.rows).sum();
    let columns = look.width.saturating_sub(LABEL + 2).clamp(10, 100);

    let mut cells = vec![vec![Cell::default(); columns]; rows];
    let mut covered = Covered::default();
    let (mut over, mut over_bytes) = (0u64, 0u128);
    for block in &blocks {
        let column = (u128::from(block.time - from) * columns as u128 / (u128::from(span) + 1)) as usize;
        let mut is_over = false;
        covered.add(block.start, block.end, &mut |start, end, again| {
            if again {
                is_over = true;
                over_bytes += u128::from(end - start);
            }
            spread(&areas, start, end, &mut |row, bytes| {
                let cell = &mut cells[row][column];
                if again {
                    cell.again = cell.again.saturating_add(bytes);
                } else {
                    cell.fresh = cell.fresh.saturating_add(bytes);
                }
            });
        });
        over += u64::from(is_over);
    }
    let all: u128 = areas.iter().map(|area| u128::from(area.len())).sum();
    writeln!(
        out,
        "places     {} of {} pieces lie over earlier code, {over_bytes} bytes of it; {} of {all} bytes in all",
        over,
        blocks.len(),
        if areas.len() == 1 { "1 area".into() } else { format!("{} areas", areas.len()) }
    )?;
    writeln!(out)?;

    let mut rows = cells.iter();
    for (number, area) in areas.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        for row in 0..area.rows {
            let (start, end) = area.row(row);
            let line = rows.next().map(|cells| draw(cells, end - start, look)).unwrap_or_default();
            writeln!(out, "{}", format!("{start:#018x}  {line}").trim_end())?;
        }
    }
    let end = match seconds {
        Some(unit) => format!("{:.6} {unit}", span as f64 / 1e9),
        None => format!("{span}"),
    };
    let line = format!("0{:>width$}", end, width = columns - 1);
    writeln!(out, "{:LABEL$}{line}", "")?;
    let again = if look.terminal { "\x1b[33mcoloured\x1b[0m" } else { "@" };
    writeln!(out, "{:LABEL$}the fuller, the more code has been there; {again}: over earlier code", "")
}

/// The areas that have code, and the number of rows for each.
fn areas(blocks: &[Block]) -> Vec<Area> {
    let mut ranges: Vec<(u64, u64)> = blocks.iter().map(|block| (block.start, block.end)).collect();
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut() {
            Some(last) if start.saturating_sub(last.1) < GAP => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    // If a picture cannot show all gaps, only the widest gaps are left out.
    if merged.len() > ROWS / 2 {
        let mut gaps: Vec<u64> = merged.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        let least = gaps[ROWS / 2 - 1];
        let mut wide: Vec<(u64, u64)> = Vec::new();
        for (start, end) in merged {
            match wide.last_mut() {
                Some(last) if start - last.1 <= least => last.1 = end,
                _ => wide.push((start, end)),
            }
        }
        merged = wide;
    }
    let total: u128 = merged.iter().map(|&(start, end)| u128::from(end - start)).sum();
    let spare = ROWS.saturating_sub(merged.len());
    let rows = |len: u64| 1 + (u128::from(len) * spare as u128 / total.max(1)) as usize;
    merged
        .iter()
        .map(|&(start, end)| Area { start, end, rows: rows(end - start).min((end - start) as usize) })
        .collect()
}

/// Splits a range at the rows of the picture.
fn spread(areas: &[Area], start: u64, end: u64, each: &mut dyn FnMut(usize, u64)) {
    let mut first = 0;
    for area in areas {
        if start < area.end && end > area.start {
            for row in 0..area.rows {
                let (low, high) = area.row(row);
                let (low, high) = (low.max(start), high.min(end));
                if low < high {
                    each(first + row, high - low);
                }
            }
        }
        first += area.rows;
    }
}

fn draw(cells: &[Cell], len: u64, look: Look) -> String {
    let levels: Vec<char> = if look.terminal { " ▁▂▃▄▅▆▇█" } else { " .,:;=+*#" }.chars().collect();
    let mut text = String::new();
    let mut sum: u64 = 0;
    for cell in cells {
        sum = sum.saturating_add(cell.fresh);
        let level = (u128::from(sum) * 8).div_ceil(u128::from(len.max(1))).min(8) as usize;
        let level = levels.get(level).copied().unwrap_or(' ');
        match (cell.again > 0, look.terminal) {
            (true, true) => text.extend(["\x1b[33m".into(), level.to_string(), "\x1b[0m".into()]),
            (true, false) => text.push('@'),
            (false, _) => text.push(level),
        }
    }
    text.trim_end().into()
}

/// The addresses that have had code so far.
#[derive(Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    /// Adds a range. `each` is called for the parts of the range. The last argument of `each` is whether the part was already
    /// there.
    fn add(&mut self, start: u64, end: u64, each: &mut dyn FnMut(u64, u64, bool)) {
        let (mut low, mut high) = (start, end);
        // Everything from `left` on was reported.
        let mut left = end;
        while let Some((&at, &until)) = self.0.range(..=high).next_back().filter(|(_, &until)| until >= low) {
            self.0.remove(&at);
            let (from, to) = (at.max(start), until.min(left));
            if from < to {
                if to < left {
                    each(to, left, false);
                }
                each(from, to, true);
                left = from;
            }
            (low, high) = (low.min(at), high.max(until));
        }
        if start < left {
            each(start, left, false);
        }
        self.0.insert(low, high);
    }
}
