//! Compares the tables at one instruction with the true frames of the shadow stack.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, FastFormatter};
use jitsym_step::{Frame, Registers, KEPT, RSP};

use super::code::Piece;
use super::finding::{Finding, Kind};
use crate::check::frames::{Row, Where};

/// The column of the return address.
const RA: u16 = 16;
const RBP: u16 = 6;
/// The names in the order of the DWARF numbers.
const NAMES: [&str; 17] = [
    "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
];
/// The maximum distance of a frame pointer from the CFA.
const NEAR: u64 = 1 << 16;

/// The index of a register in `numbered`.
pub fn number(register: iced_x86::Register) -> Option<usize> {
    let text = format!("{register:?}").to_lowercase();
    NAMES.iter().position(|name| *name == text)
}

/// The state of a thread before an instruction.
#[derive(Clone, Debug)]
pub struct Seen {
    /// CLOCK_MONOTONIC
    pub time: u64,
    pub rip: u64,
    /// The bytes of the instruction and the bytes that follow.
    pub code: Vec<u8>,
    pub registers: [u64; 17],
    /// The frame of the present call. `None` if this frame is not known.
    pub frame: Option<Frame>,
    /// The first address of the copied stack, and the copy.
    pub from: u64,
    pub stack: Vec<u8>,
    pub call: u64,
    /// The address of the previous instruction in compiled code.
    pub came_from: u64,
}

/// The registers in the order of their DWARF numbers.
pub fn numbered(now: &Registers) -> [u64; 17] {
    [
        now.rax, now.rdx, now.rcx, now.rbx, now.rsi, now.rdi, now.rbp, now.rsp, now.r8, now.r9, now.r10, now.r11,
        now.r12, now.r13, now.r14, now.r15, now.rip,
    ]
}

/// A difference. If `if_kept` is a register, the difference counts only if the call has kept that register.
pub struct Difference {
    pub finding: Finding,
    pub if_kept: Option<u16>,
}

/// The text and the length of the first instruction in some bytes.
pub fn instruction(bytes: &[u8], addr: u64) -> (String, usize) {
    let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return (format!("no instruction ({})", hex(&bytes[..bytes.len().min(4)])), 1);
    }
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_use_hex_prefix(true);
    let mut text = String::new();
    formatter.format(&instruction, &mut text);
    (text, instruction.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

impl Seen {
    fn word(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.from)?).ok()?;
        Some(u64::from_le_bytes(*self.stack.get(at..)?.first_chunk()?))
    }

    /// Where a value of the caller really is. Memory is searched first if the tables refer to memory.
    fn whereabouts(&self, register: u16, value: u64, cfa: u64, memory_first: bool) -> Option<String> {
        let in_place = register != RA && self.registers[usize::from(register)] == value;
        let in_place = in_place.then(|| format!("still in {}", NAMES[usize::from(register)]));
        let low = self.registers[usize::from(RSP)];
        let slots = (1..).map(|index| cfa.wrapping_sub(8 * index)).take_while(|&at| at >= low && at < cfa);
        let slots = slots.take(NEAR as usize / 8).filter(|&at| self.word(at) == Some(value));
        let slots: Vec<String> = slots.take(4).map(|at| format!("CFA-{}", cfa - at)).collect();
        let in_memory = (!slots.is_empty()).then(|| format!("at {}", slots.join(" or ")));
        if memory_first {
            in_memory.or(in_place)
        } else {
            in_place.or(in_memory)
        }
    }

    /// The ways in which the CFA can be computed here.
    fn cfa_ways(&self, cfa: u64) -> String {
        let [sp, bp] = [RSP, RBP].map(|register| self.registers[usize::from(register)]);
        let way = |name: &str, from: u64| {
            let distance = cfa.wrapping_sub(from);
            (distance < NEAR).then(|| format!("{name}{distance:+}"))
        };
        let ways: Vec<String> = way("rsp", sp).into_iter().chain(way("rbp", bp)).collect();
        match ways.is_empty() {
            true => format!("{cfa:#x}"),
            false => ways.join(" or "),
        }
    }

    fn finding(&self, kind: Kind, piece: &Piece) -> Finding {
        Finding {
            kind,
            function: piece.name.clone(),
            offset: self.rip.wrapping_sub(piece.range().start),
            addr: self.rip,
            instruction: instruction(&self.code, self.rip).0,
            said: String::new(),
            is: String::new(),
            change: String::new(),
            file: piece.file.clone(),
        }
    }

    /// Compares the bytes and then the tables. Sets `checked` if the bytes or the tables were compared.
    pub fn compare(&self, piece: &Piece, checked: &mut bool) -> Vec<Difference> {
        let offset = self.rip.wrapping_sub(piece.range().start);
        let mut found = Vec::new();
        let mut add = |finding: Finding, if_kept| found.push(Difference { finding, if_kept });
        let len = Decoder::with_ip(64, &self.code, self.rip, DecoderOptions::NONE).decode().len();
        let said = piece.bytes.get(offset as usize..).unwrap_or_default();
        let len = len.min(said.len()).min(self.code.len());
        if said[..len] != self.code[..len] {
            let mut finding = self.finding(Kind::Bytes, piece);
            let (text, said_len) = instruction(said, self.rip);
            finding.said = format!("{text} ({})", hex(&said[..said_len.min(said.len())]));
            finding.is = format!("{} ({})", finding.instruction, hex(&self.code[..len]));
            finding.change = "register the bytes that are executed: after they were relocated and patched".into();
            add(finding, None);
            *checked = true;
            return found;
        }
        *checked |= len > 0;
        let Some(frame) = self.frame else { return found };
        let Some(rows) = &piece.rows else {
            if let Some(problem) = &piece.problem {
                let mut finding = self.finding(Kind::Tables, piece);
                finding.offset = 0;
                finding.said = problem.clone();
                finding.is = "no reader can decode the tables".into();
                finding.change = "look at the file with `jitsym check`".into();
                add(finding, None);
            }
            return found;
        };
        *checked = true;
        let Some(row) = rows.at(offset) else {
            let mut finding = self.finding(Kind::NoRow, piece);
            finding.said = "nothing: no entry of the tables covers this instruction".into();
            finding.is = format!("the CFA is {}", self.cfa_ways(frame.cfa));
            finding.change = "let the tables cover all of the code".into();
            add(finding, None);
            return found;
        };
        self.compare_row(piece, row, &frame, &mut add);
        found
    }

    fn compare_row(&self, piece: &Piece, row: &Row, frame: &Frame, add: &mut dyn FnMut(Finding, Option<u16>)) {
        // A CFA that is given by an expression is not evaluated.
        let Some((from, by)) = row.cfa else { return };
        let Some(&base) = self.registers.get(usize::from(from)) else { return };
        let cfa = base.wrapping_add_signed(by);
        let name = |register: u16| NAMES.get(usize::from(register)).copied().unwrap_or("?");
        if cfa != frame.cfa {
            let called_inside = frame.entry.wrapping_sub(piece.range().start);
            let is_inside = called_inside > 0 && piece.range().contains(&frame.entry);
            let is_foreign = is_inside && !piece.range().contains(&frame.return_address);
            let kind = if is_foreign { Kind::Size } else { Kind::Cfa };
            let mut finding = self.finding(kind, piece);
            let wrong = cfa.wrapping_sub(frame.cfa) as i64;
            let way = if wrong > 0 { "high" } else { "low" };
            finding.said = format!("the CFA is {}{by:+}, which is {} too {way}", name(from), wrong.unsigned_abs());
            finding.is = format!("the CFA is {}", self.cfa_ways(frame.cfa));
            finding.change = format!("a row from {:#x} on has the CFA at {}", finding.offset, self.cfa_ways(frame.cfa));
            if is_foreign {
                finding.change = format!(
                    "others call {called_inside:#x}: if this is a function of its own, the size {:#x} is too large",
                    piece.size
                );
            }
            add(finding, None);
            return;
        }
        for register in [RA].into_iter().chain(KEPT) {
            let truth = match register {
                RA => frame.return_address,
                register => frame.registers[usize::from(register)],
            };
            let place = row.rule(register);
            let (value, said) = match place {
                // Expressions are not evaluated.
                Where::Elsewhere => continue,
                Where::At(at) => match self.word(cfa.wrapping_add_signed(at)) {
                    Some(word) => (word, format!("at CFA{at:+}")),
                    None => continue,
                },
                Where::In(other) => match self.registers.get(usize::from(other)) {
                    Some(&value) => (value, format!("in {}", name(other))),
                    None => continue,
                },
                Where::Same if register == RA => (!truth, "nowhere".into()),
                Where::Same => (self.registers[usize::from(register)], format!("still in {}", name(register))),
            };
            if value == truth {
                continue;
            }
            let kind = if register == RA { Kind::ReturnAddress } else { Kind::SavedRegister };
            let what =
                if register == RA { "the return address".into() } else { format!("the caller's {}", name(register)) };
            let mut finding = self.finding(kind, piece);
            let whereabouts = self.whereabouts(register, truth, cfa, matches!(place, Where::At(_)));
            finding.said = format!("{what} is {said}");
            finding.is = match &whereabouts {
                Some(place) => format!("it is {place}"),
                None => "it is in none of the words between the stack pointer and the CFA".into(),
            };
            finding.change = match &whereabouts {
                Some(place) => format!("a row from {:#x} on has {what} {place}", finding.offset),
                None => format!("a row that says where {what} is kept"),
            };
            // Code with another calling convention may use the register freely, and needs no rule for the register.
            add(finding, (place == Where::Same && register != RA).then_some(register));
        }
    }
}

/// The registers that a call has left unchanged.
pub fn kept(frame: &Frame, now: &[u64; 17]) -> BTreeSet<u16> {
    KEPT.into_iter().filter(|&register| frame.registers[usize::from(register)] == now[usize::from(register)]).collect()
}
