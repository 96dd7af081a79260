// Arguments from JavaScript to C: koffi itself cuts numbers off, and looks at no length.
'use strict';

const { UnwindKind, struct_size } = require('./abi.js');

function unsigned(value, bits, what) {
  const ok = typeof value === 'bigint' ? value >= 0n && value < 1n << BigInt(bits) : Number.isSafeInteger(value) && value >= 0 && value < 2 ** bits;
  if (!ok) throw new RangeError(`${what} is not an unsigned number of ${bits} bits: ${value}`);
  return value;
}

const u32 = (value, what) => unsigned(value, 32, what);
const u64 = (value, what) => unsigned(value, 64, what);

function i32(value, what) {
  if (!Number.isInteger(value) || value < -(2 ** 31) || value >= 2 ** 31) {
    throw new RangeError(`${what} is not a signed number of 32 bits: ${value}`);
  }
  return value;
}

/** A path: koffi would end it at a NUL. */
function path(value, what) {
  if (value === undefined || value === null) return null;
  if (typeof value !== 'string' || value.includes('\0')) throw new TypeError(`${what} is not a path: ${value}`);
  return value;
}

const isAddress = (value) => typeof value === 'bigint' || typeof value === 'number';
const isMemory = (value) => ArrayBuffer.isView(value) || value instanceof ArrayBuffer;

/** Where `size` bytes can be read: null, an address, or a view or buffer of JavaScript. */
function readable(value, size, what) {
  if (value === undefined || value === null) return null;
  if (isAddress(value)) return BigInt(u64(value, what));
  if (!isMemory(value)) throw new TypeError(`${what} are neither a buffer nor an address`);
  if (value.byteLength < size) throw new RangeError(`${value.byteLength} ${what} are given, ${size} are needed`);
  return value;
}

/** The bytes of code, which nobody keeps in place if they are a buffer. */
function codeBytes(value, size, stable) {
  if (stable && !isAddress(value) && value !== undefined && value !== null) {
    throw new TypeError('stable code wants the address of its bytes: nobody keeps a buffer');
  }
  return readable(value, size, 'bytes');
}

function saved(registers = []) {
  const table = registers.map(([reg, offset]) => ({ reg: u32(reg, 'register'), offset: i32(offset, 'offset') }));
  return { saved_count: table.length, saved: table.length ? table : null };
}

const kinds = {
  framePointer: (unwind) => ({
    kind: UnwindKind.FRAME_POINTER,
    flags: u32(unwind.flags ?? 0, 'flags'),
    fp_pushed: u32(unwind.pushed ?? 0, 'pushed'),
    fp_set: u32(unwind.set ?? 0, 'set'),
    epilogue_begin: u32(unwind.epilogueBegin ?? 0, 'epilogueBegin'),
    epilogue_end: u32(unwind.epilogueEnd ?? 0, 'epilogueEnd'),
    cfa_offset: i32(unwind.cfaOffset ?? 0, 'cfaOffset'),
    saved_from: u32(unwind.savedFrom ?? 0, 'savedFrom'),
    ...saved(unwind.saved),
  }),
  fixedFrame: (unwind) => ({
    kind: UnwindKind.FIXED_FRAME,
    flags: u32(unwind.flags ?? 0, 'flags'),
    cfa_offset: i32(unwind.cfaOffset, 'cfaOffset'),
    fp_pushed: u32(unwind.pushed ?? 0, 'pushed'),
    sp_set: u32(unwind.spSet ?? 0, 'spSet'),
    saved_from: u32(unwind.savedFrom ?? 0, 'savedFrom'),
    sp_reset: u32(unwind.spReset ?? 0, 'spReset'),
    epilogue_begin: u32(unwind.epilogueBegin ?? 0, 'epilogueBegin'),
    epilogue_end: u32(unwind.epilogueEnd ?? 0, 'epilogueEnd'),
    ...saved(unwind.saved),
  }),
  rows: (unwind) => ({
    kind: UnwindKind.ROWS,
    rows: unwind.rows.map((row) => ({
      offset: u32(row.offset, 'offset'),
      cfa_reg: u32(row.cfaReg, 'cfaReg'),
      cfa_offset: i32(row.cfaOffset, 'cfaOffset'),
      ...saved(row.saved),
    })),
    row_count: unwind.rows.length,
    row_size: struct_size.jitsym_unwind_row,
  }),
  ehFrame: (unwind) => {
    if (!isMemory(unwind.data)) throw new TypeError(`data is no buffer: ${unwind.data}`);
    return {
      kind: UnwindKind.EH_FRAME,
      eh_frame: unwind.data,
      eh_frame_size: unwind.data.byteLength,
      eh_frame_addr: u64(unwind.addr ?? 0n, 'addr'),
    };
  },
};

function described(unwind) {
  if (unwind === undefined || unwind === null) return null;
  if (!Object.hasOwn(kinds, unwind.kind)) throw new TypeError(`unwind.kind is none of ${Object.keys(kinds).join(', ')}: ${unwind.kind}`);
  return { struct_size: struct_size.jitsym_unwind, ...kinds[unwind.kind](unwind) };
}

function lineTable(lines = []) {
  const table = lines.map((row) => ({
    offset: u32(row.offset, 'offset'),
    line: u32(row.line, 'line'),
    column: u32(row.column ?? 0, 'column'),
    file: path(row.file, 'file'),
  }));
  return { lines: table.length ? table : null, line_count: table.length, line_size: struct_size.jitsym_line };
}

function inlineTable(inlines = []) {
  const table = inlines.map((entry) => {
    if (typeof entry.name !== 'string') throw new TypeError(`name is not a string: ${entry.name}`);
    return {
      begin: u32(entry.begin, 'begin'),
      end: u32(entry.end, 'end'),
      name: entry.name,
      name_len: Buffer.byteLength(entry.name),
      call_file: path(entry.callFile, 'callFile'),
      call_line: u32(entry.callLine, 'callLine'),
      call_column: u32(entry.callColumn ?? 0, 'callColumn'),
      parent: entry.parent === undefined || entry.parent === null ? 2 ** 32 - 1 : unsigned(entry.parent, 31, 'parent'),
    };
  });
  return { inlines: table.length ? table : null, inline_count: table.length, inline_size: struct_size.jitsym_inline };
}

module.exports = { codeBytes, described, inlineTable, lineTable, path, u32, u64 };
