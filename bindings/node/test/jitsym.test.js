// The package with the real library: `npm test`.
'use strict';

const assert = require('node:assert/strict');
const { execFileSync, spawnSync } = require('node:child_process');
const { mkdtempSync, readFileSync, readdirSync, rmSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { afterEach, beforeEach, test } = require('node:test');
const { Worker } = require('node:worker_threads');

const koffi = require('koffi');
const jitsym = require('jitsym');
const { Init, JitsymError, Session, Sink, Status, UnwindFlag, Want } = jitsym;

const code = Buffer.from([0xb8, 0x2a, 0, 0, 0, 0xc3]); // mov eax, 42; ret
const addr = 0x7e0000000000n; // nothing is there: the bytes come from elsewhere
const piece = { addr, size: code.length, name: 'code', bytes: code };

let dir, before;

const open = (options) => new Session({ mapDir: dir, jitdumpDir: dir, ...options });
const map = () => readFileSync(join(dir, `perf-${process.pid}.map`), 'utf8');
const dump = () => readFileSync(join(dir, `jit-${process.pid}.dump`));

/** Sessions of a process share code and counters, and so do tests. */
function within(options, run) {
  const session = open(options);
  try {
    return run(session);
  } finally {
    session.close();
  }
}

function counted(session, ...names) {
  session.flush(10_000);
  const now = session.stats();
  return names.map((name) => now[name] - before[name]);
}

function refused(status, run) {
  assert.throws(run, (error) => {
    assert.ok(error instanceof JitsymError && error instanceof Error);
    assert.deepEqual([error.code, error.status], [`JITSYM_${status}`, Status[status]]);
    return true;
  });
}

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'jitsym-node-'));
  before = within({}, (session) => session.stats());
});

afterEach(() => {
  try {
    within({}, (session) => session.unregisterRange(addr, 1n << 40n));
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test('code is registered, moved and unregistered', () => {
  const session = open();
  const answer = session.register({ ...piece, name: 'answer λ' });
  assert.equal(typeof answer.id, 'bigint');
  assert.notEqual(answer.id, 0n);
  session.flush(10_000);
  assert.ok(map().includes(`${addr.toString(16)} 6 answer λ\n`));
  answer.move(addr + 64n, { bytes: code });
  answer.unregister();
  answer.unregister();
  session.unregister(session.register({ ...piece, name: 'a\ud800b' }).id);
  session.register({ ...piece, addr: Number(addr), name: '' });
  session.unregisterRange(addr, 4096);
  assert.deepEqual(counted(session, 'registered', 'moved', 'unregistered', 'namesChanged', 'unreadable', 'live'), [3, 1, 3, 1, 0, 0]);
  assert.equal(session.stats().sinksRunning, Sink.MAP | Sink.JITDUMP | Sink.REGION);
  assert.equal(session.wanted, Want.CODE | Want.LINES | Want.UNWIND | Want.REGION);
  assert.equal(session.path(Sink.MAP), join(dir, `perf-${process.pid}.map`));
  session.close();
  session.close();
  assert.ok(session.closed);
  refused('ERR_CLOSED', () => session.flush());
});

test('the bytes come from wherever they are', () => {
  const memory = koffi.alloc('uint8_t', 64);
  const forms = [
    (text) => text,
    (text) => new Uint8Array(text),
    (text) => new DataView(Uint8Array.from(text).buffer),
    (text) => Uint8Array.from(text).buffer,
    (text) => Buffer.concat([Buffer.from('--'), text]).subarray(2),
    (text) => (new Uint8Array(koffi.view(memory, 64)).set(text), koffi.address(memory)),
    (text) => (new Uint8Array(koffi.view(memory, 64)).set(text), Number(koffi.address(memory))),
  ];
  const texts = forms.map((_, index) => Buffer.from(`code in form ${index}`));
  within({}, (session) => {
    forms.forEach((form, index) => {
      const bytes = form(texts[index]);
      session.register({ addr: addr + BigInt(64 * index), size: 14, name: 'code', bytes });
    });
    new Uint8Array(koffi.view(memory, 64)).set(Buffer.from('read by a kernelfor this is kept'));
    const at = koffi.address(memory);
    session.register({ addr: at, size: 16, name: 'code' }).unregister();
    session.register({ addr: at + 16n, size: 16, name: 'code', bytes: at + 16n, stable: true }).unregister();
    const last = session.register({ addr: at + 32n, size: 16, name: 'code', bytes: Number(at) + 32, stable: true });
    last.move(at, { bytes: Number(at) });
    last.unregister();
    assert.deepEqual(counted(session, 'unreadable'), [0]);
  });
  for (const text of [...texts, 'read by a kernel', 'for this is kept']) assert.ok(dump().includes(`code\0${text}`), text);
});

test('code memory comes from the library', () => {
  within({}, (session) => {
    const region = session.createRegion({ size: 1, maxSize: 1 << 20 });
    assert.equal(typeof region.exec, 'bigint');
    assert.notEqual(region.exec, region.write);
    assert.equal(region.size % 4096, 0);
    koffi.encode(region.write, 'uint8_t', [...code], code.length);
    assert.deepEqual([...Buffer.from(koffi.decode(region.exec, koffi.array('uint8_t', code.length)))], [...code]);
    const answer = session.register({ addr: region.exec, size: code.length, name: 'in_a_region', bytes: region.exec });
    assert.deepEqual(counted(session, 'regionCode', 'regions', 'unreadable'), [1, 1, 0]);
    assert.ok(readFileSync(session.path(Sink.REGION)).includes('in_a_region'));
    assert.ok(!map().includes('in_a_region'));
    answer.unregister();
    const inlines = [
      { begin: 0, end: 6, name: 'outer', callFile: 'a.js', callLine: 3 },
      { begin: 5, end: 6, name: 'inner', callFile: 'b.js', callLine: 4, callColumn: 1, parent: 0 },
    ];
    const inlining = { addr: region.exec, size: code.length, name: 'inlining', bytes: region.exec, lines: [{ offset: 0, line: 9, file: 'c.js' }] };
    refused('ERR_INLINE', () => session.register({ ...inlining, inlines: inlines.slice(1) }));
    assert.throws(() => session.register({ ...inlining, inlines: [{ ...inlines[0], end: -1 }] }), RangeError);
    const registered = session.register({ ...inlining, inlines });
    session.flush();
    const path = session.path(Sink.REGION);
    const symbol = execFileSync('nm', [path], { encoding: 'utf8' }).split('\n').find((line) => line.endsWith(' inlining'));
    const at = parseInt(symbol.split(' ')[0], 16) + 5;
    const frames = execFileSync('addr2line', ['-f', '-i', '-e', path, at.toString(16)], { encoding: 'utf8' }).trim().split('\n');
    assert.deepEqual(frames, ['inner', 'c.js:9', 'outer', 'b.js:4', 'inlining', 'a.js:3']);
    registered.unregister();
    region.grow(1 << 20);
    region.discard(0, 4096);
    // The end of all addresses is not passed.
    assert.throws(() => region.discard((1n << 64n) - 4096n, 4096), RangeError);
    assert.deepEqual(koffi.decode(region.exec, 'uint8_t'), 0);
    refused('ERR_REGION', () => session.adoptRegion(region.exec, region.size));
    region.release();
    refused('ERR_REGION', () => region.release());
    refused('ERR_SIZE_ZERO', () => session.createRegion({ size: 0 }));
    assert.throws(() => session.createRegion({ size: -1 }), RangeError);
    const one = session.createRegion({ size: 4096, oneView: true, hugePages: true });
    assert.deepEqual([one.exec, one.exec % (2n << 20n)], [one.write, 0n]);
    one.release();
  });
});

test('memory for one piece of code', () => {
  within({}, (session) => {
    const piece = session.alloc({ size: 200, alignment: 128 });
    assert.deepEqual([piece.size, piece.exec % 128n], [256, 0n]);
    piece.shrink(64);
    koffi.encode(piece.write, 'uint8_t', [...code], code.length);
    assert.deepEqual([...Buffer.from(koffi.decode(piece.exec, koffi.array('uint8_t', code.length)))], [...code]);
    session.register({ addr: piece.exec, size: code.length, name: 'in_a_piece', bytes: piece.exec });
    assert.deepEqual(counted(session, 'live'), [1]);
    piece.free();
    assert.deepEqual(counted(session, 'live'), [0]);
    refused('ERR_REGION', () => piece.free());
    refused('ERR_SIZE_ZERO', () => session.alloc({ size: 0 }));
  });
});

test('memory is adopted', () => {
  const mmap = koffi.load('libc.so.6').func('uintptr_t mmap(uintptr_t, size_t, int, int, int, int64_t)');
  const [PRIVATE_ANONYMOUS, READ_EXEC] = [0x22, 5];
  const memory = BigInt(mmap(0, 8192, READ_EXEC, PRIVATE_ANONYMOUS, -1, 0));
  within({}, (session) => {
    const region = session.adoptRegion(memory, 8192);
    assert.deepEqual([region.exec, region.write, region.size], [memory, null, 8192]);
    assert.equal(session.stats().regions - before.regions, 1);
    region.release();
  });
  within({ adopt: true }, (session) => {
    session.register({ addr: memory, size: 16, name: 'by_itself', bytes: memory });
    assert.deepEqual(counted(session, 'regions', 'regionCode'), [1, 1]);
    session.unregisterRange(memory, 8192, { unmap: true });
  });
});

test('sinks can be started later', () => {
  within({ flags: Init.OFF_BY_DEFAULT }, (session) => {
    const unseen = session.register(piece);
    assert.equal(unseen.id, 0n);
    unseen.move(addr + 64n);
    unseen.unregister();
    refused('ERR_NOT_RUNNING', () => session.path(Sink.MAP));
  });
  within({ flags: Init.OFF_BY_DEFAULT | Init.REMEMBER }, (session) => {
    session.register({ ...piece, name: 'remembered' });
    session.enable(Sink.MAP);
    assert.match(map(), /remembered/);
    session.disable();
    assert.equal(session.stats().sinksRunning, 0);
  });
});

test('frames and lines arrive', () => {
  const rows = { kind: 'rows', rows: [{ offset: 0, cfaReg: 7, cfaOffset: 8 }, { offset: 1, cfaReg: 7, cfaOffset: 16, saved: [[3, -16]] }] };
  within({}, (session) => {
    [{ kind: 'framePointer', epilogueBegin: 5 }, { kind: 'fixedFrame', cfaOffset: 24, saved: [[3, -16]] }, rows].forEach((unwind, index) => {
      session.register({ ...piece, addr: addr + BigInt(4096 * index), unwind });
    });
    const lines = [{ offset: 0, line: 1, file: '/src/one.toy' }, { offset: 3, line: 8, column: 5, file: '/src/two.toy' }];
    session.register({ ...piece, addr: addr + 65536n, lines });
    assert.deepEqual(counted(session, 'registered'), [4]);

    const written = (addr, unwind) => {
      const [before] = counted(session, 'jitdumpBytes');
      session.register({ ...piece, addr, unwind });
      return counted(session, 'jitdumpBytes')[0] - before;
    };
    const more = { ...rows, rows: [...rows.rows, { offset: 5, cfaReg: 7, cfaOffset: 8 }] };
    assert.ok(written(addr + 0x30000n, more) > written(addr + 0x20000n, rows), 'a row is missing');
    refused('ERR_UNWIND_FORMAT', () => session.register({ ...piece, unwind: { kind: 'ehFrame', data: Buffer.from([16, 0, 0, 0, 0, 0]) } }));
  });
  assert.ok(dump().includes('\x08\0\0\0\x05\0\0\0/src/two.toy\0'));
});

test('failures have a code', () => {
  within({}, (session) => {
    refused('ERR_SIZE_ZERO', () => session.register({ ...piece, size: 0 }));
    const flags = UnwindFlag.PACIASP | UnwindFlag.PACIBSP;
    for (const unwind of [{ kind: 'framePointer', flags }, { kind: 'fixedFrame', cfaOffset: 8, flags }]) {
      refused('ERR_FLAGS', () => session.register({ ...piece, unwind }));
    }
    refused('ERR_LINE_OFFSET', () => session.register({ ...piece, lines: [2, 9].map((offset) => ({ offset, line: 1, file: 'a' })) }));
    const old = session.register(piece);
    session.register(piece);
    session.flush(10_000);
    refused('ERR_UNKNOWN_ID', () => old.unregister());
    refused('ERR_CONFLICT', () => new Session({ mapDir: '/' }));
  });
  refused('ERR_NO_SINK', () => open({ sinks: Sink.MAP, mapDir: '/nonexistent' }));
  assert.throws(() => open({ sinks: Sink.MAP, mapDir: '/nonexistent' }), /\/nonexistent/);
  within({}, (session) => assert.match(session.lastError(), /\/nonexistent/));
});

test('what C would cut off is refused', () => {
  within({}, (session) => {
    for (const [wrong, kind] of [
      [{ addr: -1n }, RangeError],
      [{ addr: 1n << 64n }, RangeError],
      [{ addr: 2 ** 60 }, RangeError],
      [{ addr: '1' }, RangeError],
      [{ size: 7 }, RangeError],
      [{ size: 5.5 }, RangeError],
      [{ lines: [{ offset: 2 ** 32, line: 1, file: 'a' }] }, RangeError],
      [{ lines: [{ offset: 0, line: 1, file: 'a\0b' }] }, TypeError],
      [{ file: 'a\0b', line: 1 }, TypeError],
      [{ file: 'a', line: 2 ** 32 }, RangeError],
      [{ unwind: { kind: 'fixedFrame', cfaOffset: 2 ** 31 } }, RangeError],
      [{ unwind: { kind: 'toString' } }, TypeError],
      [{ bytes: 'text' }, TypeError],
      [{ bytes: true }, TypeError],
      [{ addr: true }, RangeError],
      [{ size: true }, RangeError],
      [{ bytes: new Uint8Array(0) }, RangeError],
      [{ inlines: [{ begin: 0, end: 6, name: 'a', callFile: 'b', callLine: 1, parent: 2 ** 32 - 1 }] }, RangeError],
      [{ lines: new Array(2) }, TypeError],
      [{ unwind: { kind: 'rows', rows: new Array(2) } }, TypeError],
      [{ inlines: new Array(2) }, TypeError],
      [{ bytes: -1 }, RangeError],
      [{ bytes: 2 ** 60 }, RangeError],
      [{ unwind: { kind: 'ehFrame', data: 4096 } }, TypeError],
      [{ stable: true }, TypeError],
      [{ name: 7 }, TypeError],
    ]) {
      assert.throws(() => session.register({ ...piece, ...wrong }), kind);
    }
    assert.deepEqual(counted(session, 'registered'), [0]);
  });
});

test('without the library', () => {
  const program = `
    const jitsym = require('jitsym');
    try { new jitsym.Session(); } catch (error) { console.log(jitsym.available(), error.code, error.message); }`;
  for (const [lib, reason] of [
    ['/nonexistent/libjitsym.so', '/nonexistent/libjitsym.so: .*No such file'],
    ['libm.so.6', 'libm.so.6: .*jitsym_init'],
    // Nothing is said of a variable that names it already.
    ['', 'libjitsym.so.0.1: .*No such file.*; libjitsym.so: .*No such file.*JITSYM_LIB'],
  ]) {
    const env = { ...process.env, JITSYM_LIB: lib, LD_LIBRARY_PATH: '' };
    const out = execFileSync(process.execPath, ['-e', program], { env, cwd: __dirname, encoding: 'utf8' });
    assert.match(out, new RegExp(`^false JITSYM_ERR_LIBRARY no libjitsym: ${reason}`));
    assert.ok(lib === '' || !out.includes('JITSYM_LIB '), out);
  }
});

test('worker threads register at the same time', async () => {
  const work = `
    const { parentPort, workerData } = require('node:worker_threads');
    const { Session } = require('jitsym');
    const { addr, dir } = workerData;
    const session = new Session({ mapDir: dir, jitdumpDir: dir });
    const ids = [];
    for (let index = 0n; index < 300n; index++) {
      const code = session.register({ addr: addr + 64n * index, size: 6, name: 'code', bytes: Buffer.alloc(6) });
      code.move(addr + 65536n + 64n * index, { bytes: Buffer.alloc(6) });
      if (index % 2n) code.unregister(); else ids.push(code.id);
    }
    session.close();
    parentPort.postMessage(ids);`;
  const session = open();
  const workers = [0n, 1n, 2n, 3n].map((number) => {
    const workerData = { addr: addr + (number << 20n), dir };
    const worker = new Worker(work, { eval: true, workerData });
    return new Promise((resolve, reject) => worker.on('message', resolve).on('error', reject));
  });
  const ids = (await Promise.all(workers)).flat();
  assert.deepEqual(counted(session, 'registered', 'moved', 'live'), [1200, 1200, 600]);
  ids.forEach((id) => session.unregister(id));
  assert.deepEqual(counted(session, 'live'), [0]);
  session.close();
});

test('a flush need not stop the event loop', async () => {
  const session = open();
  session.register({ ...piece, name: 'flushed' });
  const flushed = session.flushAsync(60_000);
  // None of this gives the event loop a turn, and without one nothing that runs elsewhere can come to its end here.
  for (let turn = 0; turn < 100; turn++) await null;
  assert.equal(await Promise.race([flushed, 'pending']), 'pending');
  await flushed;
  assert.match(map(), /flushed/);
  session.close();
  await assert.rejects(session.flushAsync(), { code: 'JITSYM_ERR_CLOSED' });
});

test('an exit writes what is pending', () => {
  const program = `
    const session = new (require('jitsym').Session)({ mapDir: ${JSON.stringify(dir)}, sinks: 1 });
    session.register({ addr: 0x7e0000000000n, size: 6, name: 'pending', bytes: Buffer.alloc(6) });
    process.exit(3);`;
  const child = spawnSync(process.execPath, ['-e', program], { cwd: __dirname });
  assert.equal(child.status, 3, String(child.stderr));
  const [file] = readdirSync(dir).filter((name) => name === `perf-${child.pid}.map`);
  assert.match(readFileSync(join(dir, file), 'utf8'), /pending/);
});

test('both kinds of modules, and the types, have the same names', async () => {
  const module = await import('jitsym');
  const types = readFileSync(join(__dirname, '..', 'index.d.ts'), 'utf8');
  for (const [name, value] of Object.entries(jitsym)) {
    assert.equal(module[name], value);
    assert.match(types, new RegExp(`^export (declare )?(class|const|function) ${name}\\b`, 'm'));
  }
});
