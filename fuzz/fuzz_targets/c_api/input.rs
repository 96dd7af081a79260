//! What the fuzzer makes up, and the structs of C that come of it.

use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null;

use ::jitsym::capi::types::*;
use arbitrary::Arbitrary;

use crate::memory::Memory;
use crate::place::Place;

/// Code is no larger if its bytes are given, or read later.
const BYTES_MAX: u64 = 1 << 16;
/// Most entries of a table.
const ENTRIES_MAX: usize = 1 << 14;

#[derive(Arbitrary, Debug)]
pub struct Input {
    pub calls: Vec<Call>,
    /// By another thread at the same time.
    pub other: Vec<Call>,
}

#[derive(Arbitrary, Debug)]
pub enum Call {
    Init(Option<OptionsIn>),
    Register(Session, CodeIn),
    Again(Session, CodeIn, u8),
    Move(Session, Id, TargetIn),
    Unregister(Session, Id),
    Range(Session, Addr, Size),
    Flush(Session, u16),
    Close(Session),
    Stats(Session, SizeIn),
    LastError(Session, u16),
    Path(Session, u32, u16),
    Nothing,
}

#[derive(Arbitrary, Debug)]
pub enum Session {
    Known(u8),
    Like(u8, u64),
    Wild(u64),
}

#[derive(Arbitrary, Debug)]
pub enum Id {
    Known(u8),
    Like(u8, u64),
    Wild(u64),
}

/// What a struct says of its size.
#[derive(Arbitrary, Debug, Default)]
pub enum SizeIn {
    #[default]
    Right,
    Zero,
    Other(u16),
    Huge(u64),
}

impl SizeIn {
    pub fn of(&self, right: usize) -> usize {
        match *self {
            SizeIn::Right => right,
            SizeIn::Zero => 0,
            SizeIn::Other(size) => size.into(),
            SizeIn::Huge(size) => size as usize,
        }
    }

    /// Of an element, of which there are as many as will be there.
    fn of_element(&self, right: usize) -> usize {
        match *self {
            SizeIn::Other(size) => usize::from(size) % 256,
            SizeIn::Huge(size) => size as usize % 64,
            _ => self.of(right),
        }
    }
}

#[derive(Arbitrary, Debug)]
pub enum Addr {
    /// Near a place.
    Near(u8, u16),
    Wild(u64),
}

impl Addr {
    pub fn of(&self, place: &Place) -> u64 {
        match *self {
            Addr::Near(base, offset) => {
                let base = match base % 8 {
                    0 => 0,
                    1 => place.memory.as_ptr() as u64,
                    2 => 0x7fff_ffff_0000,
                    3 => u64::MAX - 0xffff,
                    4 => 1 << 63,
                    5 => u64::from(u32::MAX) - 0x8000,
                    _ => 0x7000_0000_0000,
                };
                base + u64::from(offset)
            }
            // Few, because the library remembers where code was as long as the process lives.
            Addr::Wild(addr) => {
                if addr % 32 == 0 {
                    addr
                } else {
                    0x7000_0001_0000 + addr % 0x1000
                }
            }
        }
    }
}

#[derive(Arbitrary, Debug)]
pub enum Size {
    Small(u8),
    Medium(u16),
    Wild(u64),
    Largest(u8),
}

impl Size {
    pub fn of(&self) -> u64 {
        match *self {
            Size::Small(size) => size.into(),
            Size::Medium(size) => size.into(),
            Size::Wild(size) => size,
            Size::Largest(less) => (1 << 31) - u64::from(less),
        }
    }
}

/// Text or bytes, now and then very many.
#[derive(Arbitrary, Debug)]
pub struct Bytes {
    bytes: Vec<u8>,
    times: u8,
}

impl Bytes {
    fn get(&self) -> Vec<u8> {
        self.bytes.repeat(if self.times < 200 { 1 } else { usize::from(self.times - 199) * 20 })
    }
}

/// The bytes of a struct with these fields, and zeros in the others.
macro_rules! fields {
    ($type:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        // SAFETY: integers and pointers only, without padding between them.
        let mut plain: $type = unsafe { std::mem::zeroed() };
        $(plain.$field = $value;)*
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts((&raw const plain).cast::<u8>(), size_of::<$type>()) }.to_vec()
    }};
}

/// Behind the size, which `Memory::struct_of` puts there.
fn behind_size(bytes: Vec<u8>) -> Vec<u8> {
    bytes[size_of::<usize>()..].to_vec()
}

#[derive(Arbitrary, Debug, Default)]
pub struct OptionsIn {
    size: SizeIn,
    odd: bool,
    sinks: u8,
    flags: u16,
    wild: Option<(u32, u32, u32)>,
    map_dir: u8,
    jitdump_dir: u8,
    spool_dir: u8,
    dialect: u8,
    max_memory: u64,
    max_wait_ms: u16,
    tail: u8,
}

impl OptionsIn {
    pub fn place(&self, place: &Place, memory: &mut Memory) -> *const u8 {
        let mut dir = |number| match place.dir(number) {
            Some(dir) => memory.text(dir.as_os_str().as_bytes()).cast(),
            None => null(),
        };
        let (map_dir, jitdump_dir, spool_dir) = (dir(self.map_dir), dir(self.jitdump_dir), dir(self.spool_dir));
        let (sinks, flags, mode) = self.wild.unwrap_or((u32::from(self.sinks) % 4, u32::from(self.flags) % 1024, 0));
        let fields = fields!(jitsym_options {
            sinks: sinks,
            flags: flags,
            map_dir: map_dir,
            jitdump_dir: jitdump_dir,
            map_dialect: u32::from(self.dialect / 100),
            file_mode: mode,
            max_memory: self.max_memory,
            max_wait_ms: self.max_wait_ms.into(),
            spool_dir: spool_dir,
        });
        let mut fields = behind_size(fields);
        fields.push(self.tail);
        memory.struct_of(&fields, self.size.of(size_of::<jitsym_options>()), self.odd)
    }
}

#[derive(Arbitrary, Debug)]
pub struct CodeIn {
    size_of: SizeIn,
    odd: bool,
    addr: Addr,
    size: Size,
    name: Option<Bytes>,
    name_has_nul: bool,
    bytes: bool,
    unwind: Option<UnwindIn>,
    lines: Vec<LineIn>,
    /// How often they are there.
    many_lines: u8,
    line_size: SizeIn,
    inlines: Vec<InlineIn>,
    many_inlines: u8,
    inline_size: SizeIn,
    flags: u8,
    reserved: u8,
    file: Option<Bytes>,
    line: u32,
    reserved2: u8,
    tail: u8,
}

/// As many entries as there are, or very many.
fn count(entries: usize, many: u8) -> usize {
    if many < 220 {
        entries
    } else {
        (entries * (usize::from(many) - 219) * 100).min(ENTRIES_MAX)
    }
}

/// Mostly none.
fn flags(flags: u8) -> u32 {
    match flags {
        0..=127 => 0,
        128..=250 => u32::from(flags & 7),
        more => u32::from(more),
    }
}

/// The size of code, and where its bytes are.
fn given(size: &Size, flags: u32, bytes: bool, memory: &mut Memory) -> (u64, *const u8) {
    let (size, is_stable) = (size.of(), flags & 1 != 0);
    let size = if bytes || is_stable { size.min(BYTES_MAX) } else { size };
    (size, if bytes { memory.bytes(vec![0xcc; size as usize]) } else { null() })
}

impl CodeIn {
    pub fn place(&self, place: &Place, memory: &mut Memory) -> *const u8 {
        let code_flags = flags(self.flags);
        let (size, bytes) = given(&self.size, code_flags, self.bytes, memory);
        let name = self.name.as_ref().map(Bytes::get);
        let (name, name_len) = match name {
            None => (null(), 0),
            Some(name) if self.name_has_nul || name.is_empty() => (memory.text(&name), 0),
            Some(name) => {
                let len = name.len();
                (memory.bytes(name), len)
            }
        };
        let lines: Vec<Vec<u8>> = self.lines.iter().map(|line| line.place(memory)).collect();
        let line_count = count(lines.len(), self.many_lines);
        let stride = self.line_size.of_element(size_of::<jitsym_line>());
        let real_stride = if stride == 0 { size_of::<jitsym_line>() } else { stride };
        let inlines: Vec<Vec<u8>> = self.inlines.iter().map(|inline| inline.place(memory)).collect();
        // A struct that ends before it says how large an entry is promises entries of the size that is known, and one that ends in
        // the middle of a pointer has a wild one.
        let is_whole = self.size_of.of(size_of::<jitsym_code>()) >= size_of::<jitsym_code>();
        let inline_count = if is_whole { count(inlines.len(), self.many_inlines) } else { 0 };
        let inline_stride = self.inline_size.of_element(size_of::<jitsym_inline>());
        let real_inline_stride = if inline_stride == 0 { size_of::<jitsym_inline>() } else { inline_stride };
        let fields = fields!(jitsym_code {
            addr: self.addr.of(place),
            size: size,
            name: name.cast(),
            name_len: name_len,
            bytes: bytes.cast(),
            unwind: self.unwind.as_ref().map_or(null(), |unwind| unwind.place(memory).cast()),
            lines: if line_count == 0 { null() } else { memory.array(&lines, line_count, real_stride).cast() },
            line_count: line_count,
            line_size: stride,
            flags: code_flags,
            reserved: u32::from(self.reserved / 250),
            inlines: match inline_count {
                0 => null(),
                _ => memory.array(&inlines, inline_count, real_inline_stride).cast(),
            },
            inline_count: inline_count,
            inline_size: inline_stride,
            file: self.file.as_ref().filter(|_| is_whole).map_or(null(), |file| memory.text(&file.get()).cast()),
            line: self.line,
            reserved2: u32::from(self.reserved2 / 250),
        });
        let mut fields = behind_size(fields);
        fields.push(self.tail);
        memory.struct_of(&fields, self.size_of.of(size_of::<jitsym_code>()), self.odd)
    }
}

#[derive(Arbitrary, Debug)]
pub struct LineIn {
    offset: u16,
    wild: Option<u32>,
    line: u16,
    column: u16,
    reserved: u8,
    file: Option<Bytes>,
}

impl LineIn {
    fn place(&self, memory: &mut Memory) -> Vec<u8> {
        let file = self.file.as_ref().map_or(null(), |file| memory.text(&file.get()));
        fields!(jitsym_line {
            offset: self.wild.unwrap_or(self.offset.into()),
            line: self.line.into(),
            column: self.column.into(),
            reserved: u32::from(self.reserved / 250),
            file: file.cast(),
        })
    }
}

#[derive(Arbitrary, Debug)]
pub struct InlineIn {
    begin: u16,
    end: u16,
    name: Option<Bytes>,
    call_file: Option<Bytes>,
    call_line: u16,
    call_column: u16,
    /// 255: the function itself.
    parent: u8,
    reserved: u8,
}

impl InlineIn {
    fn place(&self, memory: &mut Memory) -> Vec<u8> {
        let mut text = |bytes: &Option<Bytes>| bytes.as_ref().map_or(null(), |bytes| memory.text(&bytes.get()));
        let (name, call_file) = (text(&self.name), text(&self.call_file));
        fields!(jitsym_inline {
            begin: self.begin.into(),
            end: self.end.into(),
            name: name.cast(),
            call_file: call_file.cast(),
            call_line: self.call_line.into(),
            call_column: self.call_column.into(),
            parent: if self.parent == u8::MAX { u32::MAX } else { self.parent.into() },
            reserved: u32::from(self.reserved / 250),
        })
    }
}

#[derive(Arbitrary, Debug)]
pub struct TargetIn {
    size: SizeIn,
    odd: bool,
    addr: Addr,
    bytes: bool,
    flags: u8,
    reserved: u8,
    tail: u8,
}

impl TargetIn {
    pub fn place(&self, place: &Place, memory: &mut Memory) -> *const u8 {
        // Any code that is there may be meant, also the largest.
        let bytes = if self.bytes { place.many_bytes.as_ptr() } else { null() };
        let fields = fields!(jitsym_move_target {
            addr: self.addr.of(place),
            bytes: bytes.cast(),
            flags: flags(self.flags),
            reserved: u32::from(self.reserved / 250),
        });
        let mut fields = behind_size(fields);
        fields.push(self.tail);
        memory.struct_of(&fields, self.size.of(size_of::<jitsym_move_target>()), self.odd)
    }
}

#[derive(Arbitrary, Clone, Debug)]
pub struct SavedIn {
    reg: u8,
    wild: Option<(u32, i32)>,
    offset: i8,
}

impl SavedIn {
    fn place(&self) -> Vec<u8> {
        let (reg, offset) = self.wild.unwrap_or((u32::from(self.reg) % 40, i32::from(self.offset) * 8));
        fields!(jitsym_saved_register { reg: reg, offset: offset })
    }
}

#[derive(Arbitrary, Debug)]
pub struct RowIn {
    offset: u8,
    cfa_reg: u8,
    cfa_offset: i16,
    wild: Option<(u32, u32, i32)>,
    saved: Vec<SavedIn>,
}

impl RowIn {
    fn place(&self, memory: &mut Memory) -> Vec<u8> {
        let near = (self.offset.into(), u32::from(self.cfa_reg) % 20, self.cfa_offset.into());
        let (offset, cfa_reg, cfa_offset) = self.wild.unwrap_or(near);
        let (saved, saved_count) = place_saved(&self.saved, memory);
        fields!(jitsym_unwind_row {
            offset: offset,
            cfa_reg: cfa_reg,
            cfa_offset: cfa_offset,
            saved_count: saved_count,
            saved: saved,
        })
    }
}

fn place_saved(saved: &[SavedIn], memory: &mut Memory) -> (*const jitsym_saved_register, u32) {
    let elements: Vec<Vec<u8>> = saved.iter().map(SavedIn::place).collect();
    let saved = memory.array(&elements, elements.len(), size_of::<jitsym_saved_register>());
    (if elements.is_empty() { null() } else { saved.cast() }, elements.len() as u32)
}

#[derive(Arbitrary, Debug)]
pub struct UnwindIn {
    size: SizeIn,
    odd: bool,
    kind: u8,
    flags: u8,
    frame: [u8; 7],
    wild: Option<[u32; 7]>,
    cfa_offset: i16,
    saved: Vec<SavedIn>,
    rows: Vec<RowIn>,
    /// Each a little later than the one before, so that there are many good ones too.
    in_order: bool,
    many_rows: u8,
    row_size: SizeIn,
    eh_frame: EhFrame,
    eh_frame_addr: u64,
    tail: u8,
}

#[derive(Arbitrary, Debug)]
enum EhFrame {
    Bytes(Vec<u8>),
    /// A sound one with some bytes changed.
    Damaged(Vec<(u8, u8)>, i8),
}

impl EhFrame {
    fn get(&self) -> Vec<u8> {
        match self {
            EhFrame::Bytes(bytes) => bytes.clone(),
            EhFrame::Damaged(changes, longer) => {
                let mut bytes =
                    vec![20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0, 0, 0, 0];
                // Right behind 16 bytes of code.
                bytes.extend([20, 0, 0, 0, 28, 0, 0, 0, 0xd0, 0xff, 0xff, 0xff, 16, 0, 0, 0]);
                bytes.extend([0, 0x41, 0x0e, 16, 0x42, 0x0e, 24, 0, 0, 0, 0, 0]);
                for &(at, value) in changes {
                    let at = usize::from(at) % bytes.len();
                    bytes[at] = value;
                }
                let len = bytes.len() as isize + isize::from(*longer).min(4);
                bytes.resize(len.max(0) as usize, 0);
                bytes
            }
        }
    }
}

impl UnwindIn {
    pub fn place(&self, memory: &mut Memory) -> *const u8 {
        let [fp_pushed, fp_set, epilogue_begin, epilogue_end, saved_from, sp_set, sp_reset] =
            self.wild.unwrap_or(self.frame.map(u32::from));
        let (saved, saved_count) = place_saved(&self.saved, memory);
        let mut rows: Vec<Vec<u8>> = self.rows.iter().map(|row| row.place(memory)).collect();
        let row_count = count(rows.len(), self.many_rows);
        if self.in_order && !rows.is_empty() {
            rows = rows.into_iter().cycle().take(row_count).collect();
            for (offset, row) in rows.iter_mut().enumerate() {
                row[..4].copy_from_slice(&(offset as u32).to_ne_bytes());
            }
        }
        let stride = self.row_size.of_element(size_of::<jitsym_unwind_row>());
        let real_stride = if stride == 0 { size_of::<jitsym_unwind_row>() } else { stride };
        let eh_frame = self.eh_frame.get();
        let eh_frame_size = eh_frame.len();
        let fields = fields!(jitsym_unwind {
            kind: if self.kind > 250 { u32::from(self.kind) } else { u32::from(self.kind) % 5 },
            flags: if self.flags < 250 { u32::from(self.flags / 100) } else { u32::from(self.flags) },
            fp_pushed: fp_pushed,
            fp_set: fp_set,
            epilogue_begin: epilogue_begin,
            epilogue_end: epilogue_end,
            cfa_offset: self.cfa_offset.into(),
            saved_count: saved_count,
            saved: saved,
            saved_from: saved_from,
            row_count: row_count as u32,
            rows: if row_count == 0 { null() } else { memory.array(&rows, row_count, real_stride).cast() },
            row_size: stride,
            eh_frame: if eh_frame_size == 0 { null() } else { memory.bytes(eh_frame).cast() },
            eh_frame_size: eh_frame_size,
            eh_frame_addr: self.eh_frame_addr,
            sp_set: sp_set,
            sp_reset: sp_reset,
        });
        let mut fields = behind_size(fields);
        fields.push(self.tail);
        memory.struct_of(&fields, self.size.of(size_of::<jitsym_unwind>()), self.odd)
    }
}
