// Makes machine code, registers and runs it, and prints the truth about it, which a test holds against perf.
//
// Usage: guest.mjs DIRECTORY. x86-64. `outer` calls `middle`, which calls one of two leaves: `hot` has a frame pointer,
// `cold` has none and is described by rows, and moved half-way.

import koffi from 'koffi';
import { Session, Sink } from 'jitsym';

const RBX = 3;
const RSP = 7;
const SPIN = 200_000;

const libc = koffi.load('libc.so.6');
const mmap = libc.func('void *mmap(void *addr, size_t size, int protection, int flags, int fd, long offset)');
const clock_gettime = libc.func('int clock_gettime(int clock, void *time)');
const now = process.hrtime.bigint;

// process.cpuUsage counts all threads of the process.
function threadTime() {
  const time = new BigInt64Array(2);
  clock_gettime(3, time);
  return Number(time[0]) * 1e9 + Number(time[1]);
}

function u32(value) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return [...bytes];
}

function u64(value) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return [...bytes];
}

const spin = (count) => [0xb9, ...u32(count), 0xff, 0xc9, 0x75, 0xfc]; // mov ecx, count; again: dec ecx; jnz again

/** Pages that can be written and executed. */
class Memory {
  size = 1 << 16;
  used = 0;

  constructor() {
    this.addr = mmap(null, this.size, 7, 0x22, -1, 0);
    this.view = Buffer.from(koffi.view(this.addr, this.size));
  }

  /** Copies code behind the last, and returns its address and its bytes there. */
  place(code) {
    const at = this.used;
    this.view.set(code, at);
    this.used = (at + code.length + 15) & ~15;
    return [this.addr + BigInt(at), this.view.subarray(at, at + code.length)];
  }
}

class Fn {
  places = [];

  constructor(name, code, unwind, rows) {
    Object.assign(this, { name, code, unwind, rows });
  }

  put(memory) {
    const before = now();
    const [addr, bytes] = memory.place(this.code);
    this.addr = addr;
    return [before, bytes];
  }

  noted(before, how) {
    this.places.push({ addr: this.addr, before, done: now(), gone: 0n, how });
  }

  register(session, memory, file) {
    const [before, bytes] = this.put(memory);
    const [[, line], ...more] = this.rows;
    const where = more.length ? { lines: this.rows.map(([offset, line]) => ({ offset, line, column: 1, file })) } : { file, line };
    const { addr, name, unwind } = this;
    this.code_ = session.register({ addr, size: this.code.length, name, bytes, unwind, ...where });
    if (!more.length) this.name = `${name} ${file}:${line}`;
    this.noted(before, 'register');
  }

  move(memory) {
    const [before, bytes] = this.put(memory);
    this.code_.move(this.addr, { bytes });
    this.noted(before, 'move');
    this.places.at(-2).gone = before;
  }

  unregister() {
    this.places.at(-1).gone = now();
    this.code_.unregister();
  }
}

// push rbp; mov rbp, rsp; BODY; pop rbp; ret
function framed(name, body, rows) {
  const code = [0x55, 0x48, 0x89, 0xe5, ...body, 0x5d, 0xc3];
  return new Fn(name, code, { kind: 'framePointer', epilogueBegin: code.length - 1 }, rows);
}

const source = `${process.argv[2]}/guest.toy`;
const session = new Session();
const memory = new Memory();

const hot = framed('hot λ', [...spin(SPIN), ...spin(2 * SPIN)], [[0, 10], [4, 11], [13, 12]]);
// push rbx; sub rsp, 32; mov ebx, 1; spin; add rsp, 32; pop rbx; ret
const code = [0x53, 0x48, 0x83, 0xec, 0x20, 0xbb, 1, 0, 0, 0, ...spin(SPIN), 0x48, 0x83, 0xc4, 0x20, 0x5b, 0xc3];
const saved = [[RBX, -16]];
const rows = [
  { offset: 0, cfaReg: RSP, cfaOffset: 8 },
  { offset: 1, cfaReg: RSP, cfaOffset: 16, saved },
  { offset: 5, cfaReg: RSP, cfaOffset: 48, saved },
  { offset: code.length - 2, cfaReg: RSP, cfaOffset: 16, saved },
  { offset: code.length - 1, cfaReg: RSP, cfaOffset: 8 },
];
const cold = new Fn('cold', code, { kind: 'rows', rows }, [[0, 20]]);
const middle = framed('middle', [0xff, 0xd7], [[0, 30], [4, 31]]); // call rdi
for (const fn of [hot, cold, middle]) fn.register(session, memory, source);
// mov rax, middle; call rax
const outer = framed('outer', [0x48, 0xb8, ...u64(middle.addr), 0xff, 0xd0], [[0, 40], [4, 41]]);
outer.register(session, memory, source);
const functions = [hot, cold, middle, outer];

// koffi runs C on a stack of its own, with arguments at its very end, where perf overlooks the last word; hence so many.
const run = koffi.decode(outer.addr, koffi.proto('void run(uint64_t leaf, int a, int b, int c, int d, int e, int f, int g)'));
const stacks = [];

// Longer where perf takes few samples.
const pace = Number(process.env.TEST_PACE ?? 1);

function work(leaf, seconds) {
  const begin = threadTime();
  while (threadTime() < begin + seconds * pace * 1e9) run(leaf.addr, 0, 0, 0, 0, 0, 0, 0);
  stacks.push([leaf.name, Math.round(threadTime() - begin)]);
}

work(hot, 0.5);
work(cold, 0.3);
cold.move(memory);
work(cold, 0.3);
hot.unregister();
await session.flushAsync(60_000);

const out = [['pid', process.pid], ['source', source], ['arena', memory.addr.toString(16), memory.size]];
for (const [name, sink] of [['map', Sink.MAP], ['jitdump', Sink.JITDUMP]]) out.push(['path', name, session.path(sink)]);
functions.forEach((fn, index) => {
  const size = fn.code.length;
  out.push(['function', index, fn.name, size]);
  for (const [offset, line] of fn.rows) out.push(['row', index, offset, line, 1]);
  for (const { addr, before, done, gone, how } of fn.places) {
    out.push(['place', index, fn.name, addr.toString(16), size, before, done, gone, how]);
  }
});
for (const [leaf, nanoseconds] of stacks) out.push(['stack', 'main', nanoseconds, leaf, 'middle', 'outer', '@koffi']);
for (const [name, value] of Object.entries(session.stats())) {
  out.push(['stat', name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`), value]);
}
session.close();
for (const line of [...out, ['end']]) console.log(line.join('\t'));
