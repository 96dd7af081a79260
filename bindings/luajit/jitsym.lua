-- Registers every trace that LuaJIT compiles with libjitsym, so that perf and other profilers know it as
-- `TRACE_n file:line`. For a stock, unmodified LuaJIT 2.1:
--
--   LUA_PATH="/path/to/libjitsym/bindings/luajit/?.lua;;" luajit -ljitsym program.lua
--
-- The library is the file that the environment variable JITSYM_LIB names, else what the system finds as "libjitsym.so.0.1" or as
-- "jitsym". Where the process has the rights of another user than the one who runs it, the variable is ignored.
--
-- With JITSYM_ADOPT=1 the memory that LuaJIT compiles to becomes a mapping of files that name the traces. Then perf and every
-- other profiler that reads ELF files needs no further step, for call stacks neither.
--
-- The module never raises an error into the program and prints nothing. `require "jitsym"` returns a table:
--
--   flush([ms])  waits until all that was registered is in the files; true, or nil and a message
--   stats()      a table of counters, or nil and a message
--   active       whether traces are being registered
--   message      why not, if they are not: the library was not found, or the variable JITSYM says "off"
--
-- The functions of a module that is not active return nil and that message.
--
-- SPDX-License-Identifier: MIT OR Apache-2.0

-- What is needed is kept in locals, because the program may change its globals. `jit.off` is more than a matter of
-- taste: the handlers run while a trace is being recorded, and compiled code that leaves a trace there would disturb
-- the recorder.
local jit, ipairs, pairs, pcall, tonumber, type = jit, ipairs, pairs, pcall, tonumber, type
local byte, find, format, sub = string.byte, string.find, string.format, string.sub
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
if jit then
  jit.off(true, true)
end

local M = { active = false }

local ffi, bit, ju                                  -- libraries, set by start()
local lib, session                                  -- libjitsym and our session in it
local code, code_id, unwind, saved, cfi_rows        -- what is passed to it, used again for each trace
local rows, rows_size = nil, 0                      -- line table, grows as needed
local ids, ids_size, ids_count = nil, 0, 0          -- what is registered and not yet unregistered
local current                                       -- the trace that is being recorded
local lines_wanted, stop_recording = false, nil     -- whether line tables are made, and what ends that
local spadjust = {}                                 -- trace number -> bytes of stack of its own; nil: not known
local counts = { traces = 0, flushes = 0, refused = 0, failures = 0, with_lines = 0, with_unwind = 0 }

-- Structs as in jitsym.h, without names: the program may have its own declarations of the same header. For the same
-- reason the functions get names of our own.
local CODE = [[struct {
  size_t struct_size; uint64_t addr; uint64_t size; const char *name; size_t name_len; const void *bytes;
  const void *unwind; const void *lines; size_t line_count; size_t line_size;
  uint32_t flags; uint32_t reserved; const void *inlines; size_t inline_count; size_t inline_size;
  const char *file; uint32_t line; uint32_t reserved2;
}]]
local UNWIND = [[struct {
  size_t struct_size; uint32_t kind, flags, fp_pushed, fp_set, epilogue_begin, epilogue_end; int32_t cfa_offset;
  uint32_t saved_count; const void *saved; uint32_t saved_from, row_count; const void *rows; size_t row_size;
  const void *eh_frame; size_t eh_frame_size; uint64_t eh_frame_addr; uint32_t sp_set, sp_reset;
}]]
local UNWIND_ROW = [[struct {
  uint32_t offset, cfa_reg; int32_t cfa_offset; uint32_t saved_count; const void *saved;
}]]
local SAVED_REGISTER = "struct { uint32_t reg; int32_t offset; }"
local LINE = "struct { uint32_t offset, line, column, reserved; const char *file; }"
local STATS = [[struct {
  size_t struct_size; uint32_t sinks_running, sinks_failed;
  uint64_t registered, moved, unregistered, overwritten, live, dropped, unreadable, names_changed,
    jitdump_bytes, jitdump_records, map_bytes, map_entries, map_rewrites, map_forgotten, write_errors, memory,
    memory_held, waited, recovered;
  uint32_t spool, inherited;
  uint64_t jitdump_lost, jitdump_held, jitdump_rewrites, map_omitted, regions, region_code, region_bytes,
    region_generations, region_late, region_refused, region_left_out, calls_refused, region_put_off, region_limit,
    threads, lines_left_out;
}]]
local FUNCTIONS = [[
int32_t jitsym_lua_init(const void *options, void **out) __asm__("jitsym_init");
int32_t jitsym_lua_register(void *session, const void *code, uint64_t *out_id) __asm__("jitsym_register");
int32_t jitsym_lua_unregister(void *session, uint64_t id) __asm__("jitsym_unregister");
int32_t jitsym_lua_flush(void *session, uint32_t timeout_ms) __asm__("jitsym_flush");
int32_t jitsym_lua_close(void *session) __asm__("jitsym_close");
int32_t jitsym_lua_get_stats(void *session, void *out) __asm__("jitsym_get_stats");
uint32_t jitsym_lua_wanted(void *session) __asm__("jitsym_wanted");
int32_t jitsym_lua_last_error(void *session, char *buf, size_t size) __asm__("jitsym_last_error");
const char *jitsym_lua_status_text(int32_t status) __asm__("jitsym_status_text");
uint32_t jitsym_lua_version_number(void) __asm__("jitsym_version_number");
char *jitsym_lua_getcwd(char *buf, size_t size) __asm__("getcwd");
unsigned long jitsym_lua_getauxval(unsigned long type) __asm__("getauxval");
]]
local STAT_NAMES = {
  "sinks_running", "sinks_failed", "registered", "moved", "unregistered", "overwritten", "live", "dropped",
  "unreadable", "names_changed", "jitdump_bytes", "jitdump_records", "map_bytes", "map_entries",
  "map_rewrites", "map_forgotten", "write_errors", "memory", "regions", "region_code", "region_bytes",
  "region_generations", "region_late", "region_refused", "region_left_out",
  "calls_refused", "region_put_off", "region_limit", "threads", "lines_left_out",
}
local UNWIND_FIXED_FRAME, UNWIND_ROWS = 2, 3        -- enum jitsym_unwind_kind
local ERR_FORKED = 23                               -- enum jitsym_status
local VERSION, VERSION_NUMBER = "0.1", 1            -- JITSYM_VERSION_NUMBER without the last three digits, the patch
local AT_SECURE = 23                                -- <elf.h>

-- A reader of bytes: a signed little-endian integer of `size` bytes (1 or 4) that begins at `at`.
local function integer(text, at, size)
  local a, b, c, d = byte(text, at, at + size - 1)
  if size == 1 then
    return a < 128 and a or a - 256
  end
  return bit.bor(a, bit.lshift(b, 8), bit.lshift(c, 16), bit.lshift(d, 24))
end

---------------------------------------------------------------------------------------------------------- unwinding
-- LuaJIT lays its stack frame out by the same rule everywhere (x86-64, POSIX). A trace runs in the frame of the
-- interpreter, which with the trace's part is 96 bytes to the canonical frame address, the six registers that belong to
-- the caller at fixed places. A trace that spills takes more, by instructions that look always the same:
--
--   root trace   [add rsp, -n]  mov dword [r14+x], TRACENO  ...  [add rsp, n  jmp elsewhere]
--   side trace   loads from the parent's frame, then as a root trace, n being counted from the parent's value; at its
--                end all of it is given back
--
-- The store of the trace number is what the head is recognised by. Whatever does not look like this, or contradicts
-- itself, gets no description: a wrong one is worse than none.
local SAVED = { { 6, -16 }, { 3, -24 }, { 15, -32 }, { 14, -40 }, { 12, -80 }, { 13, -88 } }
local FRAME = 96
local RSP = 7

-- The operand of an `add rsp, imm` that ends before `behind`, and where it starts; 0 if there is none.
local function add_rsp(mcode, behind)
  if behind > 4 and sub(mcode, behind - 4, behind - 2) == "\72\131\196" then
    return integer(mcode, behind - 1, 1), behind - 4
  elseif behind > 7 and sub(mcode, behind - 7, behind - 5) == "\72\129\196" then
    return integer(mcode, behind - 4, 4), behind - 7
  end
  return 0, behind
end

-- Where the head stores the trace number: `mov dword [r14+disp32], imm32` or the form with disp8.
local function number_store(mcode, tr)
  local at = 1
  while true do
    at = find(mcode, "\65\199[\70\134]", at)
    if not at then
      return nil
    end
    local imm = byte(mcode, at + 2) == 70 and at + 4 or at + 7
    if imm + 3 <= #mcode and integer(mcode, imm, 4) == tr then
      return at
    end
    at = at + 1
  end
end

-- Fills `unwind` for a trace; false if its frame is not certain. `parent` is nil for a root trace.
local function describe_frame(tr, parent, mcode, loop)
  spadjust[tr] = nil
  local inherited = 0
  if parent then
    inherited = spadjust[parent]
  end
  local store = number_store(mcode, tr)
  if not inherited or not store then
    return false
  end
  local grown, head = add_rsp(mcode, store)
  if grown > 0 or (not parent and head ~= 1) then
    return false
  end
  local total = inherited - grown

  -- A trace that does not loop ends with the jump to where it goes on, having given the frame back.
  local tail
  if loop <= 0 then
    tail = #mcode - 4
    if tail <= store or byte(mcode, tail) ~= 0xe9 or (total ~= 0 and add_rsp(mcode, tail) ~= total) then
      return false
    end
  end

  local count = 0
  local function row(offset, adjust)
    local r = cfi_rows[count]
    r.offset, r.cfa_reg, r.cfa_offset, r.saved_count, r.saved = offset, RSP, FRAME + adjust, #SAVED, saved
    count = count + 1
  end
  row(0, inherited)
  if grown ~= 0 then
    row(store - 1, total)
  end
  if tail and total ~= 0 then
    row(tail - 1, 0)
  end
  local fixed = count == 1
  unwind.kind = fixed and UNWIND_FIXED_FRAME or UNWIND_ROWS
  unwind.cfa_offset = fixed and FRAME + inherited or 0
  unwind.saved_count, unwind.saved = fixed and #SAVED or 0, fixed and saved or nil
  unwind.row_count, unwind.rows = fixed and 0 or count, not fixed and cfi_rows or nil
  unwind.row_size = fixed and 0 or ffi.sizeof(cfi_rows[0])
  spadjust[tr] = total
  return true
end

--------------------------------------------------------------------------------------------------------- line tables
-- LuaJIT keeps no map from machine code to source. What can be had:
--
--   "record" events   bytecode by bytecode, with the number of IR instructions so far: IR instruction -> line
--   the loop          LuaJIT makes the body of a loop by copying what it has recorded, leaving out what is invariant.
--                     Each copy is matched with its original, in order, by its operation and operands.
--   guards            a conditional jump to exit n belongs to a guard of snapshot n, in order: IR instruction -> offset
--   arithmetic        `sqrtsd` and the like belong to the IR of the same name, in order, between two guards (x86-64)
--
-- The machine code follows the IR in order, so that what lies between two of these is shared out among the instructions
-- between them. The rows are therefore exact there and can be off by a few machine instructions between.
local IR = {}                                       -- name -> number of an IR operation
local SILENT = { "NOP", "BASE", "PVAL", "LOOP", "USE", "PHI", "RENAME", "XBAR", "CARG", "AREF", "FREF", "STRREF" }
local JUMPLESS = {                                  -- marked as guards, but without a jump of their own
  "LOOP", "UREFO", "TNEW", "TDUP", "BUFSTR", "TOSTR", "SNEW", "CNEW", "CNEWI", "CALLA", "CALLL", "CALLS", "CALLXS",
}
local LONG = {                                      -- in machine code; all others count 1
  HREFK = 3, TBAR = 6, OBAR = 6, CALLN = 3, CALLL = 3, CALLS = 3, CALLXS = 4, TNEW = 8, TDUP = 8, RETF = 4,
}
local weights, jumpless = {}, {}                    -- the same by number
local IRT_GUARD, IRT_ISPHI, IRT_MARKS = 0x80, 0x40, 0xe0

-- Line tables are for programs, not for programs that compile without end: beyond this many traces they are left out,
-- which bounds what they cost.
local LINES_MAX = 4000
-- How far ahead a copied instruction is looked for among the originals.
local MATCH_WINDOW = 100

local directory                                     -- where relative file names start
local paths = {}                                    -- chunk name -> absolute path
local function path_of(source)
  if type(source) ~= "string" or byte(source) ~= 64 then
    return nil                                      -- no "@": not from a file
  end
  local path = paths[source]
  if not path then
    path = sub(source, 2)
    if directory and byte(path) ~= 47 then
      path = directory .. "/" .. (sub(path, 1, 2) == "./" and sub(path, 3) or path)
    end
    paths[source] = path
  end
  return path
end

-- Reads the IR of a trace: per instruction, what is needed below.
local function read_ir(tr, nins)
  local mode, ot, op1, op2, loop = {}, {}, {}, {}, nil
  for ref = 1, nins do
    mode[ref], ot[ref], op1[ref], op2[ref] = ju.traceir(tr, ref)
    if bit.rshift(ot[ref], 8) == IR.LOOP then
      loop = ref
    end
  end
  return { mode = mode, ot = ot, op1 = op1, op2 = op2, loop = loop, nins = nins }
end

-- For each instruction of the loop body: the instruction that it is a copy of.
local function match_copies(ir)
  local origin = {}
  local loop, ot = ir.loop, ir.ot
  local function same_operand(is_ref, copy, original)
    if copy == original then
      return true
    elseif not is_ref or copy < 0 or original < 0 then
      return false
    elseif copy > loop then
      return origin[copy] == nil or origin[copy] == original
    end
    return bit.band(ot[copy], IRT_ISPHI) ~= 0       -- the value of the turn before
  end
  local done = 0
  for ref = loop + 1, ir.nins do
    local kind = bit.band(ot[ref], bit.bnot(IRT_MARKS))
    if weights[bit.rshift(kind, 8)] ~= 0 then
      local op1, op2, mode = ir.op1[ref], ir.op2[ref], ir.mode[ref]
      for original = done + 1, min(loop - 1, done + MATCH_WINDOW) do
        if bit.band(ot[original], bit.bnot(IRT_MARKS)) == kind
          and same_operand(bit.band(mode, 3) == 0, op1, ir.op1[original])
          and same_operand(bit.band(mode, 12) == 0, op2, ir.op2[original])
        then
          origin[ref], done = original, original
          break
        end
      end
    end
  end
  return origin
end

-- The place in the source of a step, { file, line }: `before` if it is the same or if there is none.
local function place_of_step(trace, step, before)
  local info = ju.funcinfo(trace.func[step], trace.pc[step])
  local file = info.source and path_of(info.source)
  if not file or info.currentline <= 0 or (before and before.file == file and before.line == info.currentline) then
    return before
  end
  return { file = file, line = info.currentline }
end

-- For each IR instruction its place.
local function places_of(ir, trace)
  local places = {}
  local step, place = 0, nil
  for ref = 1, (ir.loop or ir.nins + 1) - 1 do
    while step < trace.steps and trace.nins[step + 1] < ref do
      step = step + 1
      place = place_of_step(trace, step, place)
    end
    places[ref] = place
  end
  if ir.loop then
    local origin = match_copies(ir)
    places[ir.loop] = places[1]
    for ref = ir.loop + 1, ir.nins do
      place = origin[ref] and places[origin[ref]] or places[ref - 1]
      places[ref] = place
    end
  end
  return places
end

-- The arithmetic of floating-point numbers: byte behind `F2 [REX] 0F` of the instruction -> name of the IR operation.
local ARITHMETIC = { [0x51] = "FPMATH", [0x58] = "ADD", [0x59] = "MUL", [0x5c] = "SUB", [0x5e] = "DIV" }
local operations = {}                               -- number of such an operation -> name
local IRT_TYPE, IRT_NUM = 0x1f, 14
local FPM_SQRT                                      -- operand of FPMATH for `sqrtsd`

-- The offset behind an instruction whose ModRM byte is at `at`.
local function behind_operands(mcode, at)
  local modrm = byte(mcode, at) or 0xc0
  local mod, rm = bit.rshift(modrm, 6), bit.band(modrm, 7)
  if mod == 3 then
    return at
  end
  local base = rm == 4 and bit.band(byte(mcode, at + 1) or 0, 7) or rm
  at = rm == 4 and at + 1 or at
  return at + (mod == 1 and 1 or (mod == 2 or base == 5) and 4 or 0)
end

-- Anchors between two: see above. Of each operation there have to be as many in the IR as in the machine code; IR that turned
-- out not to be needed makes no code.
local function arithmetic_between(ir, mcode, from, to, anchors)
  local wanted = {}
  for ref = from.ref + 1, to.ref do
    local name = bit.band(ir.ot[ref], IRT_TYPE) == IRT_NUM and operations[bit.rshift(ir.ot[ref], 8)]
    if name and (name ~= "FPMATH" or ir.op2[ref] == FPM_SQRT) then
      local refs = wanted[name] or {}
      wanted[name], refs[#refs + 1] = refs, ref
    end
  end
  local found, counts = {}, {}
  local at = from.offset + 1
  while true do
    at = find(mcode, "\242[\64-\79]?\15[\81\88\89\92\94]", at)
    if not at or at > to.offset then
      break
    end
    local opcode = byte(mcode, at + 1) == 15 and at + 2 or at + 3
    local name = ARITHMETIC[byte(mcode, opcode)]
    at = behind_operands(mcode, opcode + 1) + 1
    counts[name] = (counts[name] or 0) + 1
    found[#found + 1] = { offset = at - 1, name = name, nth = counts[name] }
  end
  for _, anchor in ipairs(found) do
    local refs = wanted[anchor.name] or {}
    anchor.ref = refs[anchor.nth]
    if #refs == counts[anchor.name] and anchor.ref > anchors[#anchors].ref then
      anchors[#anchors + 1] = anchor
    end
  end
end

-- Pairs of offset and IR instruction: the code before the offset belongs to the instructions up to that one.
local function anchors_of(tr, ir, exits, mcode, addr, loop_offset)
  -- Guards of each snapshot.
  local guards, stubs = {}, {}
  local first = {}
  for exit = 0, exits - 1 do
    guards[exit], first[exit] = {}, ju.tracesnap(tr, exit)[0]
    stubs[ju.traceexitstub(exit)] = exit
  end
  local exit = 0
  for ref = 1, ir.nins do
    while exit + 1 < exits and ref >= first[exit + 1] do
      exit = exit + 1
    end
    if exits > 0 and bit.band(ir.ot[ref], IRT_GUARD) ~= 0 and not jumpless[bit.rshift(ir.ot[ref], 8)] then
      local list = guards[exit]
      list[#list + 1] = ref
    end
  end

  -- Jumps to exits: `jcc rel32` and `jmp rel32`. Bytes that look like one by chance do not lead to an exit. Two in a
  -- row are one comparison of floating-point numbers.
  local jumps, per_exit = {}, {}
  local at = 1
  while true do
    at = find(mcode, "[\15\233]", at)
    if not at or at + 4 > #mcode then
      break
    end
    local length = byte(mcode, at) == 233 and 5 or bit.band(byte(mcode, at + 1), 0xf0) == 0x80 and 6
    local target
    if length and at + length - 1 <= #mcode then
      target = stubs[addr + at - 1 + length + integer(mcode, at + length - 4, 4)]
    end
    if target then
      local last = jumps[#jumps]
      if last and last.exit == target and last.behind == at - 1 then
        last.behind = at - 1 + length
      else
        per_exit[target] = (per_exit[target] or 0) + 1
        jumps[#jumps + 1] = { exit = target, nth = per_exit[target], behind = at - 1 + length }
      end
      at = at + length
    else
      at = at + 1
    end
  end

  local anchors = { { offset = 0, ref = 0 } }
  local function anchor(offset, ref)
    local last = anchors[#anchors]
    if offset > last.offset and ref > last.ref then
      anchors[#anchors + 1] = { offset = offset, ref = ref }
    end
  end
  local loop_pending = ir.loop and loop_offset > 0
  for _, jump in ipairs(jumps) do
    -- If the numbers of jumps and guards differ, the nth jump takes its share of the guards.
    local list = guards[jump.exit]
    local ref = list[ceil(jump.nth * #list / per_exit[jump.exit])]
    if loop_pending and jump.behind > loop_offset then
      anchor(loop_offset, ir.loop)
      loop_pending = false
    end
    if ref then
      anchor(jump.behind, ref)
    end
  end
  if loop_pending then
    anchor(loop_offset, ir.loop)
  end
  anchor(#mcode, ir.nins)

  local all = { anchors[1] }
  for i = 2, #anchors do
    arithmetic_between(ir, mcode, anchors[i - 1], anchors[i], all)
    all[#all + 1] = anchors[i]
  end
  return all
end

-- How long the machine code of an IR instruction is, roughly, in units of a simple instruction: a guard has a
-- comparison and a jump in addition.
local function weight(ot)
  local own = weights[bit.rshift(ot, 8)] or 1
  return own > 0 and bit.band(ot, IRT_GUARD) ~= 0 and own + 2 or own
end

-- Fills `rows` and returns how many there are.
local function line_rows(tr, trace, mcode, addr, loop_offset)
  local info = ju.traceinfo(tr)
  local ir = read_ir(tr, info.nins)
  local places = places_of(ir, trace)
  local anchors = anchors_of(tr, ir, info.nexit, mcode, addr, loop_offset)
  local count, place = 0, nil
  local function row(offset, new)
    if offset >= #mcode or (place and new.file == place.file and new.line == place.line) then
      return
    end
    if count > 0 and rows[count - 1].offset == offset then
      count = count - 1                             -- nothing lies between: the new row takes the other's place
    end
    if count == rows_size then
      local size = max(64, 2 * rows_size)
      local larger = ffi.new(ffi.typeof(LINE .. "[?]"), size)
      ffi.copy(larger, rows or larger, rows_size * ffi.sizeof(larger[0]))
      rows, rows_size = larger, size
    end
    local r = rows[count]
    r.offset, r.line, r.column, r.reserved, r.file = offset, new.line, 0, 0, new.file
    count, place = count + 1, new
  end
  local first = place_of_step(trace, 1)
  if first then
    row(0, first)
  end
  for i = 2, #anchors do
    local from, to = anchors[i - 1], anchors[i]
    local before, total = 0, 0
    for ref = from.ref + 1, to.ref do
      total = total + weight(ir.ot[ref])
    end
    for ref = from.ref + 1, to.ref do
      local share = weight(ir.ot[ref])
      if share > 0 and places[ref] then
        row(from.offset + floor((to.offset - from.offset) * before / total), places[ref])
      end
      before = before + share
    end
  end
  return count
end

-------------------------------------------------------------------------------------------------------------- events
-- All machine code is gone. One by one, because another Lua state of this process may have been given the memory
-- already.
local function unregister_all()
  for i = 0, ids_count - 1 do
    lib.jitsym_lua_unregister(session, ids[i])
  end
  ids_count, spadjust = 0, {}
end

local function open()
  local out = ffi.new("void *[1]")
  local status = lib.jitsym_lua_init(nil, out)
  if status ~= 0 then
    local text = ffi.new("char[?]", 500)
    lib.jitsym_lua_last_error(nil, text, 500)
    local reason = ffi.string(lib.jitsym_lua_status_text(status))
    return nil, text[0] ~= 0 and reason .. " " .. ffi.string(text) or reason
  end
  -- At the end of the Lua state, of which no event tells, its machine code goes: other states of the process may get the
  -- memory. If the process ends before that, the library writes what is left.
  return ffi.gc(out[0], function(handle)
    if session == handle then
      pcall(unregister_all)
      session = nil
    end
    pcall(lib.jitsym_lua_close, handle)
  end)
end

local function register()
  local status = lib.jitsym_lua_register(session, code, code_id)
  if status == ERR_FORKED then
    -- This is the child of a fork, which has to have a session of its own. (For the traces that it has inherited, perf
    -- goes on looking in the files of the parent.)
    session = open()
    status = session and lib.jitsym_lua_register(session, code, code_id) or status
  end
  return status == 0
end

-- A trace is complete: its code is in place and has not run yet.
local function on_stop(tr, trace)
  local mcode, addr, loop = ju.tracemc(tr)
  local name = format("TRACE_%d %s", tr, trace.place)
  code.addr, code.size, code.bytes = addr, #mcode, mcode
  code.name, code.name_len = name, #name
  code.unwind, code.lines, code.line_count, code.line_size = nil, nil, 0, 0

  if unwind and describe_frame(tr, trace.parent, mcode, loop) then
    code.unwind = unwind
  end
  if lines_wanted then
    local ok, count = pcall(line_rows, tr, trace, mcode, addr, loop)
    if ok and count > 0 then
      code.lines, code.line_count, code.line_size = rows, count, ffi.sizeof(rows[0])
    end
  end

  local ok = register()
  if not ok and (code.unwind ~= nil or code.line_count > 0) then
    -- The name is what matters most.
    code.unwind, code.lines, code.line_count, code.line_size = nil, nil, 0, 0
    spadjust[tr] = nil
    ok = register()
  end
  if not ok then
    counts.refused = counts.refused + 1
    return
  end
  counts.traces = counts.traces + 1
  counts.with_lines = counts.with_lines + (code.line_count > 0 and 1 or 0)
  counts.with_unwind = counts.with_unwind + (code.unwind ~= nil and 1 or 0)

  -- Trace numbers are used again while the code of the trace that had them before is still there: that goes only with
  -- all the rest, at a flush. So what is kept is the library's own ids.
  if ids_count == ids_size then
    local size = 2 * ids_size + 256
    local larger = ffi.new("uint64_t[?]", size)
    ffi.copy(larger, ids or larger, 8 * ids_size)
    ids, ids_size = larger, size
  end
  ids[ids_count] = code_id[0]
  ids_count = ids_count + 1
end

local function place_of(func, pc)
  local info = ju.funcinfo(func, pc)
  return info.loc or info.addr and format("C:%x", info.addr) or "?"
end

local function on_trace(what, tr, func, pc, parent, exit)
  if not session then
    return
  elseif what == "start" then
    -- A trace that is stitched to another one (exit -1) has a frame like a root trace.
    -- The first IR is made before the first bytecode is recorded; it belongs to where the trace starts.
    current = {
      tr = tr, place = place_of(func, pc), parent = exit ~= -1 and parent or nil,
      steps = 1, nins = { 0 }, func = { func }, pc = { pc },
    }
  elseif what == "stop" then
    local trace = current
    current = nil
    if trace and trace.tr == tr then
      on_stop(tr, trace)
      if lines_wanted and counts.traces >= LINES_MAX then
        lines_wanted = false
        stop_recording()
      end
    end
  elseif what == "abort" then
    current = nil
  elseif what == "flush" then
    current = nil
    unregister_all()
    counts.flushes = counts.flushes + 1
  end
end

-- A bytecode instruction is about to be recorded. Those that made no IR are forgotten, as are those whose IR has been
-- taken back. What a built-in function does (it has no bytecode) belongs to the call.
local function on_record(tr, func, pc)
  local trace = current
  if trace and trace.tr == tr and lines_wanted and pc >= 0 then
    local nins, steps = ju.traceinfo(tr).nins, trace.steps
    while steps > 0 and trace.nins[steps] >= nins do
      steps = steps - 1
    end
    steps = steps + 1
    trace.steps, trace.nins[steps], trace.func[steps], trace.pc[steps] = steps, nins, func, pc
  end
end

-- Attaches a handler in a way that no error leaves it, that `errno` stays, and that a handler which was attached before
-- (`luajit -jv`, for instance) is still called: LuaJIT knows one for each event.
--
-- The handler runs on the stack of the program, so that it should need little of it: LuaJIT 2.1.0-beta3 crashes if the
-- handler of an event, this or any other, overflows the stack. That takes a program which starts a hot loop within a
-- few dozen of its 65,500 slots from the end. A coroutine, which has a stack of its own, is no way out: the recorder
-- would go on with that stack in place of the program's.
local function attach(handler, event)
  local earlier
  local function outer(...)
    local errno = ffi.errno()
    if not pcall(handler, ...) then
      counts.failures = counts.failures + 1
    end
    ffi.errno(errno)
    if earlier then
      return earlier(...)
    end
  end
  local registry = debug.getregistry()
  local before = {}
  for key, value in pairs(registry._VMEVENTS or {}) do
    before[key] = value
  end
  jit.attach(outer, event)
  for key, value in pairs(registry._VMEVENTS or {}) do
    if value == outer then
      earlier = before[key]
    end
  end
  return function()
    jit.attach(outer)
    if earlier then
      jit.attach(earlier, event)
    end
  end
end

--------------------------------------------------------------------------------------------------------------- start
local function struct(declaration)
  local value = ffi.new(ffi.typeof(declaration))
  value.struct_size = ffi.sizeof(value)
  return value
end

-- The library, or nil and why there is none. While the major version is 0, every minor version has an interface of its own.
local function load()
  local given = ffi.C.jitsym_lua_getauxval(AT_SECURE) == 0 and os.getenv("JITSYM_LIB") or ""
  local problems = {}
  for _, name in ipairs(given ~= "" and { given } or { "libjitsym.so." .. VERSION, "jitsym" }) do
    local ok, found = pcall(ffi.load, name)
    local number
    if ok then
      ok, number = pcall(function() return found.jitsym_lua_version_number() end)
    end
    if not ok then
      problems[#problems + 1] = tostring(number or found)
    elseif floor(number / 1000) == VERSION_NUMBER then
      return found
    else
      problems[#problems + 1] = name .. " is not version " .. VERSION
    end
  end
  return nil, table.concat(problems, "; ")
end

-- Returns nothing, or why nothing will be registered.
local function start()
  if not jit or not jit.attach then
    return "this Lua has no JIT compiler"
  end
  ffi, bit, ju = require("ffi"), require("bit"), require("jit.util")
  ffi.cdef(FUNCTIONS)
  local message
  lib, message = load()
  if not lib then
    return message
  end
  session, message = open()
  if not session then
    return message
  end
  if lib.jitsym_lua_wanted(session) == 0 then
    lib.jitsym_lua_close(ffi.gc(session, nil))
    session = nil
    return "no symbols are wanted (see the variable JITSYM)"
  end

  code, code_id = struct(CODE), ffi.new("uint64_t[1]")
  if jit.arch == "x64" and jit.os == "Linux" then
    unwind = struct(UNWIND)
    saved = ffi.new(ffi.typeof(SAVED_REGISTER .. "[?]"), #SAVED)
    for i, pair in ipairs(SAVED) do
      saved[i - 1].reg, saved[i - 1].offset = pair[1], pair[2]
    end
    cfi_rows = ffi.new(ffi.typeof(UNWIND_ROW .. "[3]"))

    local ok, vmdef = pcall(require, "jit.vmdef")
    if ok and type(vmdef.irnames) == "string" then
      for number = 0, #vmdef.irnames / 6 - 1 do
        IR[vmdef.irnames:sub(number * 6 + 1, number * 6 + 6):match("^%S*")] = number
      end
      for _, name in ipairs(SILENT) do
        weights[IR[name] or -1] = 0
      end
      for name, weight in pairs(LONG) do
        weights[IR[name] or -1] = weight
      end
      for _, name in ipairs(JUMPLESS) do
        jumpless[IR[name] or -1] = true
      end
      for _, name in pairs(ARITHMETIC) do
        operations[IR[name] or -1] = name
      end
      for number, name in pairs(vmdef.irfpm or {}) do
        FPM_SQRT = name == "sqrt" and number or FPM_SQRT
      end
      local buffer = ffi.new("char[?]", 4096)
      if ffi.C.jitsym_lua_getcwd(buffer, 4096) ~= nil then
        directory = ffi.string(buffer)
      end
      lines_wanted = IR.LOOP ~= nil
    end
  end

  attach(on_trace, "trace")
  if lines_wanted then
    stop_recording = attach(on_record, "record")
  end
end

local function number_or(value, default)
  value = tonumber(value)
  return value and value >= 0 and value <= 0xffffffff and value or default
end

function M.flush(milliseconds)
  if not session then
    return nil, M.message
  end
  local status = lib.jitsym_lua_flush(session, number_or(milliseconds, 1000))
  if status ~= 0 then
    return nil, ffi.string(lib.jitsym_lua_status_text(status))
  end
  return true
end

-- The counters of the library by the names of jitsym_stats, and those of the module: `traces` registered, `with_lines`
-- and `with_unwind` of them, `flushes` of the machine code, traces `refused` by the library, `failures` in this module.
function M.stats()
  if not session then
    return nil, M.message
  end
  local raw = struct(STATS)
  local status = lib.jitsym_lua_get_stats(session, raw)
  if status ~= 0 then
    return nil, ffi.string(lib.jitsym_lua_status_text(status))
  end
  local result = {}
  for _, name in ipairs(STAT_NAMES) do
    result[name] = tonumber(raw[name])
  end
  for name, value in pairs(counts) do
    result[name] = value
  end
  return result
end

local ok, message = pcall(start)
if not ok then
  session = nil
end
M.active = session ~= nil
M.message = message and tostring(message):gsub("^[^:]*:%d+: ", "")
return M
