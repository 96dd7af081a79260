//! Reads unwind tables from any producer, laid out as in the object that perf makes for a LOAD.

use std::borrow::Cow;

use gimli::read::{BaseAddresses, CieOrFde, EhFrame, EndianSlice};
use gimli::read::{FrameDescriptionEntry, UnwindContext, UnwindSection, UnwindTableRow};
use gimli::{Endianity, RunTimeEndian, Vendor};
use jitsym::format::jitdump::raw::RawHeader;

/// Reads the bytes of a table.
pub type Reader<'a> = EndianSlice<'a, RunTimeEndian>;
/// The entry of an unwind table that describes some code.
pub type Fde<'a> = FrameDescriptionEntry<Reader<'a>>;
/// A row of an unwind table: the rules for a part of the code.
pub type Row = UnwindTableRow<usize>;

/// The address of the code in the objects that are examined here. Any address that is not near an end of the address space is
/// possible, also if addresses have 32 bits.
pub const CODE: u64 = 1 << 31;

/// The maximum number of bytes of CIEs that are parsed for one piece of code. Each FDE parses its whole CIE, so hostile
/// tables could take hours. Tables of compilers stay far below this limit.
const WORK_MAX: usize = 16 << 20;

/// The offset of the row count in an `.eh_frame_hdr`.
const HDR_COUNT: usize = 8;
/// The offset of the rows.
const HDR_TABLE: usize = 12;

pub const EM_386: u32 = 3;
pub const EM_ARM: u32 = 40;
pub const EM_X86_64: u32 = 62;
pub const EM_AARCH64: u32 = 183;
const EM_RISCV: u32 = 243;

/// The properties of the machine that decoding depends on.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    endian: RunTimeEndian,
    address_size: u8,
    vendor: Vendor,
    machine: u32,
}

impl Target {
    /// From the header of a file.
    pub fn new(header: &RawHeader) -> Self {
        Target::of(header.machine, cfg!(target_endian = "little") != header.swapped)
    }

    /// From a machine (`e_machine`) and a byte order.
    pub fn of(machine: u32, little: bool) -> Self {
        let address_size = if matches!(machine, EM_386 | EM_ARM) { 4 } else { 8 };
        let vendor = if machine == EM_AARCH64 { Vendor::AArch64 } else { Vendor::Default };
        let endian = if little { RunTimeEndian::Little } else { RunTimeEndian::Big };
        Target { endian, address_size, vendor, machine }
    }

    /// Returns the same target. If the machine is not known, the column of the return address determines the machine.
    pub fn with_column(mut self, return_address: u16) -> Target {
        self.machine = match (self.machine, return_address) {
            (0, 16) => EM_X86_64,
            (0, 30) => EM_AARCH64,
            (machine, _) => machine,
        };
        self
    }

    /// Whether the code is that of x86-64.
    pub fn is_x86_64(&self) -> bool {
        self.machine == EM_X86_64
    }

    /// Whether the code is that of AArch64.
    pub fn is_aarch64(&self) -> bool {
        self.machine == EM_AARCH64
    }

    /// Sets the properties of the machine on which the decoding of a section depends.
    pub fn prepare(&self, section: &mut EhFrame<Reader>) {
        section.set_address_size(self.address_size);
        section.set_vendor(self.vendor);
    }

    /// The name of a register, if it is known.
    pub fn register_name(&self, register: gimli::Register) -> Option<&'static str> {
        match self.machine {
            EM_386 => gimli::X86::register_name(register),
            EM_ARM => gimli::Arm::register_name(register),
            EM_X86_64 => gimli::X86_64::register_name(register),
            EM_AARCH64 => gimli::AArch64::register_name(register),
            EM_RISCV => gimli::RiscV::register_name(register),
            _ => None,
        }
    }
}

/// The tables of one piece of code.
pub struct TableReader<'a> {
    section: EhFrame<Reader<'a>>,
    bases: BaseAddresses,
    target: Target,
}

impl<'a> TableReader<'a> {
    /// Makes a reader of tables that are laid out as in perf's objects: `.eh_frame` follows the code, aligned to 8 bytes, and
    /// `.eh_frame_hdr` follows `.eh_frame`, aligned to 4 bytes. `code_size` is below 2^32. The bytes come from [`readable`].
    pub fn new(target: Target, eh_frame: &'a [u8], code_size: u64) -> Self {
        let mut section = EhFrame::new(eh_frame, target.endian);
        target.prepare(&mut section);
        let at = CODE + code_size.next_multiple_of(8);
        let hdr = at + (eh_frame.len() as u64).next_multiple_of(4);
        let bases = BaseAddresses::default().set_text(CODE).set_eh_frame(at).set_eh_frame_hdr(hdr);
        TableReader { section, bases, target }
    }

    /// The address of `.eh_frame`.
    pub fn address(&self) -> u64 {
        self.bases.eh_frame.section.unwrap_or_default()
    }

    /// The search table in the following `.eh_frame_hdr`, as perf reads it. Whatever the encodings in the header are, each
    /// row has two signed words relative to the header: the start of the code, and the offset of its entry in `.eh_frame`. A
    /// missing row is `None`.
    pub fn search_table<'b>(&self, hdr: &'b [u8]) -> impl Iterator<Item = Option<(u64, u64)>> + use<'b> {
        let (endian, at, frame) =
            (self.target.endian, self.bases.eh_frame_hdr.section.unwrap_or_default(), self.address());
        let count = hdr.get(HDR_COUNT..HDR_TABLE).map_or(0, |count| endian.read_u32(count));
        let mut rows = hdr.get(HDR_TABLE..).unwrap_or_default().chunks_exact(8);
        let mut missing = false;
        (0..count).map_while(move |_| {
            let row = rows.next().map(|row| {
                let word = |bytes: &[u8]| at.wrapping_add_signed((endian.read_u32(bytes) as i32).into());
                (word(&row[..4]), word(&row[4..]).wrapping_sub(frame))
            });
            // Only the first missing row is reported.
            (!std::mem::replace(&mut missing, row.is_none())).then_some(row)
        })
    }

    /// The address of `.eh_frame` according to the header.
    pub fn header_pointer(&self, hdr: &[u8]) -> Option<u64> {
        let distance = self.target.endian.read_u32(hdr.get(4..HDR_COUNT)?) as i32;
        Some(self.bases.eh_frame_hdr.section?.wrapping_add(4).wrapping_add_signed(distance.into()))
    }

    /// See the function `each_row`.
    pub fn each_row(&self, each: &mut dyn FnMut(&Fde<'a>, &Row) -> Result<(), String>) -> Result<(), String> {
        each_row(&self.section, &self.bases, each)
    }
}

/// Passes all rows of a section to `each`, with their FDEs. Each FDE has at least one row. The error describes the part that
/// cannot be decoded, or is an error of `each`.
pub fn each_row<'a>(
    section: &EhFrame<Reader<'a>>,
    bases: &BaseAddresses,
    each: &mut dyn FnMut(&Fde<'a>, &Row) -> Result<(), String>,
) -> Result<(), String> {
    let mut context = UnwindContext::new();
    let mut work = 0;
    let mut entries = section.entries(bases);
    while let Some(entry) = entries.next().map_err(|error| error.to_string())? {
        let CieOrFde::Fde(partial) = entry else { continue };
        let at = partial.offset();
        let problem = |error: gimli::Error| format!("the entry at {at:#x}: {error}");
        let fde = partial.parse(EhFrame::cie_from_offset).map_err(problem)?;
        work += fde.cie().entry_len();
        if work > WORK_MAX {
            return Err("too many entries share too much".into());
        }
        let mut rows = fde.rows(section, bases, &mut context).map_err(problem)?;
        while let Some(row) = rows.next_row().map_err(problem)? {
            each(&fde, row)?;
        }
    }
    Ok(())
}

/// The offset of the zero word that ends a section. `None` if it is missing.
pub fn terminator(section: &[u8], target: Target) -> Option<usize> {
    entry_offsets(section, target).find(|&(_, len)| len == 0).map(|(at, _)| at)
}

/// The offset of each entry, and its length without the length word. Ends at an entry that has length 0 or is incomplete.
fn entry_offsets(section: &[u8], target: Target) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut next = Some(0);
    std::iter::from_fn(move || {
        let at = next?;
        let length = target.endian.read_u32(section.get(at..)?.get(..4)?);
        let skip = match length {
            u32::MAX => usize::try_from(target.endian.read_u64(section.get(at + 4..at + 12)?)).ok()?.checked_add(8)?,
            length => length as usize,
        };
        next = at.checked_add(skip)?.checked_add(4).filter(|&end| skip != 0 && end <= section.len());
        (skip == 0 || next.is_some()).then_some((at, skip))
    })
}

/// The section in a form that gimli can read: without V8's references to pointers that do not exist ([`without_omitted`]),
/// and without the letter `B`. CIEs of AArch64 code that signs its return addresses with key B have this letter, which gimli
/// does not support.
pub fn readable(section: &[u8], target: Target) -> Cow<'_, [u8]> {
    let mut out = without_omitted(section, target);
    for (at, len) in entry_offsets(section, target).filter(|_| target.is_aarch64()) {
        // The letter `S` (signal frame) has no operand, and does not affect the rules.
        if let Some(letter) = out.get(at + 4..at + 4 + len).and_then(b_key) {
            out.to_mut()[at + 4 + letter] = b'S';
        }
    }
    out
}

/// The section without references to pointers that do not exist. CIEs of V8 declare pointers to language-specific data, with
/// the encoding "none" (`DW_EH_PE_omit`). Unwinders accept this encoding, but gimli does not.
pub fn without_omitted(section: &[u8], target: Target) -> Cow<'_, [u8]> {
    let mut out = Cow::Borrowed(section);
    for (at, len) in entry_offsets(section, target) {
        let Some(lsda) = section.get(at + 4..at + 4 + len).and_then(omitted_lsda) else { continue };
        let cie = &mut out.to_mut()[at + 4..at + 4 + len];
        // The letter `L`, its operand, and the byte for this operand in the length of all operands are removed. Two
        // instructions without effect (DW_CFA_nop) fill the entry.
        cie[lsda - 1] -= 1;
        cie.copy_within(AUGMENTATION + 2..lsda, AUGMENTATION + 1);
        cie.copy_within(lsda + 1.., lsda - 1);
        cie[len - 2..].fill(0);
    }
    out
}

/// The offset of the augmentation in a CIE, after id and version.
const AUGMENTATION: usize = 5;

/// The offset, in a CIE without its length, of the `B` in its augmentation.
fn b_key(cie: &[u8]) -> Option<usize> {
    let augmentation = cie.get(AUGMENTATION..).filter(|rest| cie.starts_with(&[0; 4]) && rest.starts_with(b"z"))?;
    let letter = augmentation.iter().position(|byte| matches!(byte, b'B' | 0))?;
    (augmentation[letter] == b'B').then_some(AUGMENTATION + letter)
}

/// The offset, in a CIE without its length, of the encoding of pointers to language-specific data, if this is "none".
fn omitted_lsda(cie: &[u8]) -> Option<usize> {
    let (id, rest) = cie.split_at_checked(4)?;
    if id != [0; 4] || !matches!(rest.first(), Some(1 | 3)) || !rest[1..].starts_with(b"zLR\0") {
        return None;
    }
    // The encoding follows two factors, the return address column, and the length of the augmentation data.
    let mut at = AUGMENTATION + 4;
    for _ in 0..4 {
        at += cie.get(at..)?.iter().position(|byte| byte & 0x80 == 0)? + 1;
    }
    let has_both = cie.get(at - 1).is_some_and(|length| (2..0x80).contains(length)) && cie.len() > at + 1;
    (*cie.get(at)? == gimli::constants::DW_EH_PE_omit.0 && has_both).then_some(at)
}
