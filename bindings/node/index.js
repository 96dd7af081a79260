// JIT-compiled code made visible to perf and other profilers, through libjitsym.
'use strict';

const { CodeFlag, Init, Limit, MapDialect, RangeFlag, RegionFlag, Sink, SpoolState, Status, UnwindFlag, Want, struct_size, structs } = require('./abi.js');
const { codeBytes, described, inlineTable, lineTable, path, u32, u64 } = require('./arguments.js');
const { JitsymError, check, lastError, load, text, versionText } = require('./library.js');

/** A piece of registered code. Nothing happens when the object goes: code is gone when it is unregistered. */
class Code {
  #session;
  #size;

  constructor(session, id, size) {
    this.#session = session;
    this.#size = size;
    this.id = id;
  }

  move(addr, { bytes, stable = false } = {}) {
    if (this.id === 0n) return;
    this.#session.call('jitsym_move', this.id, {
      struct_size: struct_size.jitsym_move_target,
      addr: u64(addr, 'addr'),
      bytes: codeBytes(bytes, this.#size, stable),
      flags: stable ? CodeFlag.STABLE : 0,
    });
  }

  unregister() {
    if (this.id === 0n) return;
    this.#session.call('jitsym_unregister', this.id);
    this.id = 0n;
  }
}

/** What code needs to know of its session. */
class Handle {
  constructor(library, handle) {
    this.library = library;
    this.handle = handle;
  }

  call(name, ...args) {
    check(this.library[name](this.handle, ...args));
  }
}

/** Code memory that is a mapping of an ELF file. It ends with `release`, and not when the object goes. */
class Region {
  #session;

  constructor(session, exec, write, size) {
    this.#session = session;
    this.exec = exec;
    this.write = write;
    this.size = size;
  }

  grow(size) {
    this.#session.call('jitsym_region_grow', this.exec, u64(size, 'size'));
  }

  discard(offset, size) {
    this.#session.call('jitsym_region_discard', u64(this.exec + BigInt(u64(offset, 'offset')), 'the end of offset'), u64(size, 'size'));
  }

  release() {
    this.#session.call('jitsym_region_release', this.exec);
  }
}

/** Memory for one piece of code. It ends with `free`, and not when the object goes. */
class Piece {
  #session;

  constructor(session, exec, write, size) {
    this.#session = session;
    this.exec = exec;
    this.write = write;
    this.size = size;
  }

  shrink(size) {
    this.#session.call('jitsym_shrink', this.exec, u64(size, 'size'));
  }

  free() {
    this.#session.call('jitsym_free', this.exec);
  }
}

/** An open session. It ends with `close` or the process, and not when the object goes. */
class Session {
  #session;
  #closed = false;

  constructor(options = {}) {
    const library = load();
    const out = [null];
    check(
      library.jitsym_init(
        {
          struct_size: struct_size.jitsym_options,
          sinks: u32(options.sinks ?? 0, 'sinks'),
          flags: (u32(options.flags ?? 0, 'flags') | (options.adopt ? Init.ADOPT : 0)) >>> 0,
          map_dir: path(options.mapDir, 'mapDir'),
          jitdump_dir: path(options.jitdumpDir, 'jitdumpDir'),
          spool_dir: path(options.spoolDir, 'spoolDir'),
          map_dialect: u32(options.mapDialect ?? 0, 'mapDialect'),
          file_mode: u32(options.fileMode ?? 0, 'fileMode'),
          max_memory: u64(options.maxMemory ?? 0, 'maxMemory'),
          max_wait_ms: u32(options.maxWaitMs ?? 0, 'maxWaitMs'),
          map_max: u64(options.mapMax ?? 0, 'mapMax'),
          jitdump_max: u64(options.jitdumpMax ?? 0, 'jitdumpMax'),
        },
        out,
      ),
    );
    this.#session = new Handle(library, out[0]);
  }

  register({ addr, size, name, file, line = 0, bytes, unwind, lines, inlines, stable = false }) {
    const id = [0];
    if (typeof name !== 'string') throw new TypeError(`name is not a string: ${name}`);
    this.#session.call(
      'jitsym_register',
      {
        struct_size: struct_size.jitsym_code,
        addr: u64(addr, 'addr'),
        size: u64(size, 'size'),
        name,
        name_len: Buffer.byteLength(name),
        file: path(file, 'file'),
        line: u32(line, 'line'),
        bytes: codeBytes(bytes, size, stable),
        unwind: described(unwind),
        ...lineTable(lines),
        ...inlineTable(inlines),
        flags: stable ? CodeFlag.STABLE : 0,
      },
      id,
    );
    return new Code(this.#session, BigInt(id[0]), size);
  }

  unregister(id) {
    this.#session.call('jitsym_unregister', u64(id, 'id'));
  }

  unregisterRange(addr, size, { unmap = false } = {}) {
    this.#session.call('jitsym_unregister_range', u64(addr, 'addr'), u64(size, 'size'), unmap ? RangeFlag.UNMAP : 0);
  }

  createRegion({ size, maxSize = 0, alignment = 0, near = 0, oneView = false, hugePages = false }) {
    const region = { struct_size: struct_size.jitsym_region, exec: 0, write: 0, size: 0 };
    this.#session.call(
      'jitsym_region_create',
      {
        struct_size: struct_size.jitsym_region_options,
        size: u64(size, 'size'),
        max_size: u64(maxSize, 'maxSize'),
        alignment: u64(alignment, 'alignment'),
        near_addr: u64(near, 'near'),
        flags: (oneView ? RegionFlag.ONE_VIEW : 0) | (hugePages ? RegionFlag.HUGE_PAGES : 0),
      },
      region,
    );
    return new Region(this.#session, BigInt(region.exec), BigInt(region.write), Number(region.size));
  }

  adoptRegion(addr, size) {
    const start = BigInt(u64(addr, 'addr'));
    this.#session.call('jitsym_region_adopt', start, u64(size, 'size'));
    return new Region(this.#session, start, null, Number(size));
  }

  alloc({ size, alignment = 0, near = 0 }) {
    const piece = { struct_size: struct_size.jitsym_region, exec: 0, write: 0, size: 0 };
    this.#session.call('jitsym_alloc', u64(size, 'size'), u64(alignment, 'alignment'), u64(near, 'near'), piece);
    return new Piece(this.#session, BigInt(piece.exec), BigInt(piece.write), Number(piece.size));
  }

  flush(timeoutMs = 0) {
    this.#session.call('jitsym_flush', u32(timeoutMs, 'timeoutMs'));
  }

  flushAsync(timeoutMs = 0) {
    return new Promise((resolve, reject) => {
      const { library, handle } = this.#session;
      library.jitsym_flush.async(handle, u32(timeoutMs, 'timeoutMs'), (error, status) => {
        try {
          if (error) throw error;
          resolve(check(status));
        } catch (failure) {
          reject(failure);
        }
      });
    });
  }

  enable(sinks = 0) {
    this.#session.call('jitsym_enable', u32(sinks, 'sinks'));
  }

  disable(sinks = 0) {
    this.#session.call('jitsym_disable', u32(sinks, 'sinks'));
  }

  stats() {
    const out = { struct_size: struct_size.jitsym_stats };
    for (const field of Object.keys(structs.jitsym_stats.members)) out[field] ??= 0;
    this.#session.call('jitsym_get_stats', out);
    const fields = Object.entries(out).filter(([field]) => field !== 'struct_size');
    return Object.fromEntries(fields.map(([field, value]) => [field.replace(/_(.)/g, (_, c) => c.toUpperCase()), Number(value)]));
  }

  get wanted() {
    const { library, handle } = this.#session;
    return library.jitsym_wanted(handle);
  }

  lastError() {
    return lastError(this.#session.handle);
  }

  path(sink) {
    const { library, handle } = this.#session;
    return text(Limit.DIR_MAX + 64, (buffer, size) => library.jitsym_path(handle, u32(sink, 'sink'), buffer, size));
  }

  get closed() {
    return this.#closed;
  }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#session.call('jitsym_close');
  }

  [Symbol.dispose ?? Symbol.for('Symbol.dispose')]() {
    this.close();
  }
}

function available() {
  try {
    load();
    return true;
  } catch {
    return false;
  }
}

function version() {
  return versionText(load().jitsym_version_number());
}

module.exports = { Code, Init, JitsymError, MapDialect, Piece, Region, Session, Sink, SpoolState, Status, UnwindFlag, Want, available, version };
