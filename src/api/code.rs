//! The input types of the Rust API, which describe a piece of code and borrow the caller's data.

use crate::api::error::{Error, Result};

/// One piece of code to register. See `jitsym_code` in the C header for ranges and meanings.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Address at which the code runs.
    pub addr: u64,
    /// Size in bytes.
    pub size: u64,
    /// Where the code's bytes can be read.
    pub bytes: Bytes<'a>,
    /// Name, which the library cleans as `jitsym_code.name` in the C header describes.
    pub name: &'a [u8],
    /// File in which the function begins; empty if unknown. The library appends the file to the function's name: see
    /// `jitsym_code.file` in the C header.
    pub file: &'a [u8],
    /// Line number in `file`, counted from 1; 0 if unknown.
    pub line: u32,
    /// How to find the caller's frame.
    pub unwind: Unwind<'a>,
    /// Line table.
    pub lines: Lines<'a>,
    /// Inlined functions. Profilers show inlined functions of code in regions, and debuggers of all code.
    pub inlines: &'a [Inline<'a>],
    /// Whether the code's bytes stay unchanged until the code is flushed, unregistered or moved: see `JITSYM_CODE_STABLE` in
    /// the C header.
    pub stable: bool,
    /// Whether the bytes right after the code stay free of other code while this code is live: see `JITSYM_CODE_GAP` in the C
    /// header.
    pub gap: bool,
    /// Whether the caller registers more code before any of this code runs: see `JITSYM_CODE_MORE` in the C header.
    pub more: bool,
}

impl<'a> Code<'a> {
    /// Code with a name and nothing else. The library reads the code's bytes at `addr`.
    pub fn new(addr: u64, size: u64, name: &'a str) -> Self {
        Code {
            addr,
            size,
            bytes: Bytes::AtAddress,
            name: name.as_bytes(),
            file: &[],
            line: 0,
            unwind: Unwind::None,
            lines: Lines::Rows(&[]),
            inlines: &[],
            stable: false,
            gap: false,
            more: false,
        }
    }
}

/// Where the bytes of code can be read.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// The bytes are at the address where the code runs. The kernel reads the bytes for the library, so unreadable memory does
    /// no harm.
    AtAddress,
    /// The bytes are in this slice, which is as long as the code.
    Here(&'a [u8]),
}

/// A line table, in one of two forms.
#[derive(Clone, Copy)]
pub enum Lines<'a> {
    /// Rows in any order. Of two rows with the same offset, the later row counts.
    Rows(&'a [Line<'a>]),
    /// A table in the caller's own layout.
    Table(&'a dyn LineTable),
}

impl std::fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows", self.len())
    }
}

impl<'a> Lines<'a> {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Lines::Rows(rows) => rows.len(),
            Lines::Table(table) => table.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One row, or an error if the row does not exist or is invalid.
    #[inline]
    pub fn row(&self, index: usize) -> Result<Line<'a>> {
        match self {
            Lines::Rows(rows) => rows.get(index).copied().ok_or(Error::LineFile),
            Lines::Table(table) => table.row(index),
        }
    }
}

/// Gives access to the rows of a line table that the caller stores in its own layout.
pub trait LineTable {
    /// Number of rows.
    fn len(&self) -> usize;
    /// Whether there are no rows.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// One row, or an error that describes the fault of the row.
    fn row(&self, index: usize) -> Result<Line<'_>>;
}

/// One row of a line table. The row describes the code from `offset` up to the offset of the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Bytes from the start of the code.
    pub offset: u32,
    /// Line number, counted from 1. A row with line 0 is left out (`Stats::lines_left_out`).
    pub line: u32,
    /// Column, counted from 1; 0 if unknown.
    pub column: u32,
    /// File name.
    pub file: &'a [u8],
}

/// A range of code that comes from another function, which the compiler has inlined; see `jitsym_inline` in the C header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline<'a> {
    /// Bytes from the start of the code to the first byte of the range.
    pub begin: u32,
    /// Bytes from the start of the code to the first byte after the range.
    pub end: u32,
    /// Name of the inlined function, which the library cleans like [`Code::name`].
    pub name: &'a [u8],
    /// File of the call.
    pub call_file: &'a [u8],
    /// Line number of the call, counted from 1.
    pub call_line: u32,
    /// Column of the call, counted from 1; 0 if unknown.
    pub call_column: u32,
    /// Index of the entry of the function into which this function is inlined. That entry must precede this entry. `None` if
    /// this function is inlined into the registered function itself.
    pub parent: Option<u32>,
}

impl Inline<'_> {
    /// Whether this function is inlined into the function of entry `index`.
    pub(crate) fn is_in(&self, index: usize) -> bool {
        self.parent.is_some_and(|parent| parent as usize == index)
    }
}

/// How to find the caller's frame. Offsets count bytes from the start of the code; registers have their DWARF numbers.
#[derive(Clone, Copy, Debug)]
pub enum Unwind<'a> {
    /// Unknown.
    None,
    /// The code keeps a frame pointer.
    FramePointer(FramePointer<'a>),
    /// CFA = SP + a fixed number of bytes, in all of the code or between prologue and epilogue.
    FixedFrame(FixedFrame<'a>),
    /// A table of rows in strictly rising order of their offsets.
    Rows(&'a [UnwindRow<'a>]),
    /// An `.eh_frame` section that the compiler made. Its personality routines and LSDAs, which only the sink `unwinder` uses,
    /// must stay valid while the code is registered.
    EhFrame {
        /// The section.
        bytes: &'a [u8],
        /// The address to which pc-relative pointers of the section are relative, which may differ from the address of `bytes`.
        addr: u64,
    },
}

/// The offsets at which the frame changes, in code that has a frame pointer. See `jitsym_unwind` in the C header. `Default`
/// describes code that has the usual prologue of the architecture and no epilogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePointer<'a> {
    /// Offset after the instruction that stores the caller's frame pointer; 0 means the offset in the architecture's usual
    /// prologue.
    pub pushed: u32,
    /// Offset after the instruction that sets the frame pointer; 0 means the offset in the architecture's usual prologue.
    pub set: u32,
    /// Offset after the instruction that removes the frame; 0 if the code has no such instruction.
    pub epilogue_begin: u32,
    /// Offset after the return instruction; 0 means the end of the code.
    pub epilogue_end: u32,
    /// CFA = FP + `cfa_offset`; 0 means the architecture's usual distance from FP to the CFA.
    pub cfa_offset: i32,
    /// Registers that are saved in addition to the frame pointer and the return address.
    pub saved: &'a [SavedRegister],
    /// Offset after the instruction that stores the last register of `saved`; 0 means the value of `set`.
    pub saved_from: u32,
    /// The key with which the code signs its return address: see `jitsym_unwind_flag` in the C header.
    pub signed: Option<SigningKey>,
}

/// A key with which AArch64 code signs its return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningKey {
    /// `paciasp` signs the return address.
    A,
    /// `pacibsp` signs the return address.
    B,
}

/// A frame whose CFA is at a fixed distance from the stack pointer, and the offsets in the code where the frame begins and
/// ends. See `jitsym_unwind` in the C header.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedFrame<'a> {
    /// Bytes from the stack pointer to the CFA while the frame exists.
    pub cfa_offset: i32,
    /// Registers that are saved in the frame. If `pushed` is not 0, the frame pointer need not be listed.
    pub saved: &'a [SavedRegister],
    /// Offset after the instruction that stores the caller's frame pointer; 0 if the code has no such instruction.
    pub pushed: u32,
    /// Offset after the instruction that allocates the frame; 0 means that the frame exists from the start.
    pub sp_set: u32,
    /// Offset after the instruction that stores the last register of `saved`; 0 means the value of `sp_set`.
    pub saved_from: u32,
    /// Offset after the instruction that frees all of the frame except the stored frame pointer; 0 if the code has no such
    /// instruction.
    pub sp_reset: u32,
    /// Offset after the instruction that removes the frame; 0 if the code has no such instruction.
    pub epilogue_begin: u32,
    /// Offset after the return instruction; 0 means the end of the code.
    pub epilogue_end: u32,
    /// The key with which the code signs its return address: see `jitsym_unwind_flag` in the C header.
    pub signed: Option<SigningKey>,
}

impl<'a> FixedFrame<'a> {
    /// A frame that exists in all of the code.
    pub const fn new(cfa_offset: i32, saved: &'a [SavedRegister]) -> Self {
        FixedFrame {
            cfa_offset,
            saved,
            pushed: 0,
            sp_set: 0,
            saved_from: 0,
            sp_reset: 0,
            epilogue_begin: 0,
            epilogue_end: 0,
            signed: None,
        }
    }
}

/// A register that is saved in the frame; see `jitsym_saved_register` in the C header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedRegister {
    /// DWARF register number.
    pub reg: u32,
    /// Bytes from the CFA.
    pub offset: i32,
}

/// One row of [`Unwind::Rows`]: the whole state from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct UnwindRow<'a> {
    /// Bytes from the start of the code.
    pub offset: u32,
    /// Register from which the CFA is computed.
    pub cfa_register: u32,
    /// CFA = register + this.
    pub cfa_offset: i32,
    /// Registers that are saved from `offset` on.
    pub saved: &'a [SavedRegister],
}

/// The new address of moved code.
#[derive(Clone, Copy, Debug)]
pub struct MoveTarget<'a> {
    /// The code's new address.
    pub addr: u64,
    /// Where the code's bytes can be read. The slice of [`Bytes::Here`] must be as long as the code.
    pub bytes: Bytes<'a>,
    /// Whether the code's bytes at the new address stay unchanged: see [`Code::stable`].
    pub stable: bool,
    /// Whether the bytes right after the code's new address range stay free of other code: see [`Code::gap`].
    pub gap: bool,
}
