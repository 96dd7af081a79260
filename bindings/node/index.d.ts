/** JIT-compiled code made visible to perf and other profilers, through libjitsym. */

/** An address or a size. Numbers above 2 ** 53 are refused: use a BigInt. */
export type Word = bigint | number;

/** Where bytes can be read: an address (which is believed), or memory of JavaScript. */
export type Readable = Word | ArrayBufferView | ArrayBuffer;

/** DWARF register numbers, and bytes from the CFA: where the caller's registers are. */
export type Saved = [register: number, offset: number][];

/** How to find the caller's frame. Zeros stand for the usual prologue. */
export type Unwind =
  | {
      kind: 'framePointer';
      pushed?: number;
      set?: number;
      epilogueBegin?: number;
      epilogueEnd?: number;
      cfaOffset?: number;
      saved?: Saved;
      savedFrom?: number;
      /** A value of `UnwindFlag`. */
      flags?: number;
    }
  | {
      kind: 'fixedFrame';
      cfaOffset: number;
      saved?: Saved;
      pushed?: number;
      spSet?: number;
      savedFrom?: number;
      spReset?: number;
      epilogueBegin?: number;
      epilogueEnd?: number;
      /** A value of `UnwindFlag`. */
      flags?: number;
    }
  | { kind: 'rows'; rows: { offset: number; cfaReg: number; cfaOffset: number; saved?: Saved }[] }
  | { kind: 'ehFrame'; data: ArrayBufferView | ArrayBuffer; addr?: Word };

/** From `offset` on the code belongs to this place in the source. */
export interface Line {
  offset: number;
  line: number;
  column?: number;
  file: string;
}

/** The code from `begin` to `end` is a function that was inlined. */
export interface Inline {
  begin: number;
  end: number;
  name: string;
  /** Where the call stood that is gone. */
  callFile: string;
  callLine: number;
  callColumn?: number;
  /** Index of the entry that it is inlined into; none: the function itself. */
  parent?: number | null;
}

export interface Place {
  /** Where the code can be read. Without it the library asks the kernel to read at its address. */
  bytes?: Readable | null;
  /** The bytes stay where they are until the code is unregistered, and are not copied now; `bytes` is an address then. */
  stable?: boolean;
}

export interface CodeInfo extends Place {
  addr: Word;
  size: number;
  name: string;
  /** Where the function begins: the end of its name, and its only line if there are no `lines`. */
  file?: string | null;
  line?: number;
  unwind?: Unwind | null;
  lines?: Line[];
  /** Frames where the code lies in a region. */
  inlines?: Inline[];
}

/** The library's options; what is left out it decides itself. */
export interface Options {
  /** Bits of `Sink`. */
  sinks?: number;
  /** Bits of `Init`. */
  flags?: number;
  /** Memory that code is registered in becomes a region by itself; see `Session.adoptRegion`. */
  adopt?: boolean;
  mapDir?: string;
  jitdumpDir?: string;
  spoolDir?: string;
  mapDialect?: number;
  fileMode?: number;
  maxMemory?: Word;
  maxWaitMs?: number;
  mapMax?: Word;
  jitdumpMax?: Word;
}

/** The counters of the process; the library's reference says what each counts. */
export interface Stats {
  sinksRunning: number;
  sinksFailed: number;
  registered: number;
  moved: number;
  unregistered: number;
  overwritten: number;
  live: number;
  dropped: number;
  unreadable: number;
  namesChanged: number;
  jitdumpBytes: number;
  jitdumpRecords: number;
  mapBytes: number;
  mapEntries: number;
  mapRewrites: number;
  mapForgotten: number;
  writeErrors: number;
  memory: number;
  memoryHeld: number;
  waited: number;
  recovered: number;
  spool: number;
  inherited: number;
  jitdumpLost: number;
  jitdumpHeld: number;
  jitdumpRewrites: number;
  mapOmitted: number;
  regions: number;
  regionCode: number;
  regionBytes: number;
  regionGenerations: number;
  regionLate: number;
  regionRefused: number;
  regionLeftOut: number;
  callsRefused: number;
  regionPutOff: number;
  regionLimit: number;
  threads: number;
  linesLeftOut: number;
}

/** A piece of registered code. Nothing happens when the object goes: code is gone when it is unregistered. */
export declare class Code {
  private constructor();
  /** Known to all sessions of the process, in all worker threads. 0n: no sink runs, and there is nothing to do. */
  readonly id: bigint;
  /** The code now runs at `addr`. */
  move(addr: Word, place?: Place): void;
  /** The code is gone: to be called before its memory is used for something else. The second time is harmless. */
  unregister(): void;
}

/** What a region is to be like. Sizes are in bytes. */
export interface RegionOptions {
  size: Word;
  /** It can grow so far. */
  maxSize?: Word;
  alignment?: Word;
  /** An address from which all of it can be reached by a displacement of 32 bits. */
  near?: Word;
  /** Code is written where it runs, and the program changes the protection of the memory itself. */
  oneView?: boolean;
  hugePages?: boolean;
}

/** Code memory that is a mapping of an ELF file. It ends with `release`, and not when the object goes. */
export declare class Region {
  private constructor();
  /** Where code runs: the address to register it with. */
  readonly exec: bigint;
  /** Where code is written; null for memory that was adopted. */
  readonly write: bigint | null;
  /** How large it was at first. */
  readonly size: number;
  /** It is so large from now on, in whole pages, unless it was larger. Nothing moves. */
  grow(size: Word): void;
  /** Gives whole pages back, in which no code lives any more. They read zero from now on. */
  discard(offset: Word, size: Word): void;
  /** Memory that was created is gone, memory that was adopted is plain memory again. */
  release(): void;
}

/** What memory for code is to be like. */
export interface PieceOptions {
  /** In bytes. */
  size: Word;
  /** A power of two up to 4096. */
  alignment?: Word;
  /** An address from which all of it can be reached by a displacement of 32 bits. */
  near?: Word;
}

/** Memory for one piece of code. It ends with `free`, and not when the object goes. */
export declare class Piece {
  private constructor();
  /** Where code runs: the address to register it with. */
  readonly exec: bigint;
  /** Where code is written. */
  readonly write: bigint;
  /** How large it was at first. */
  readonly size: number;
  /** Gives back all but the first `size` bytes, before code is registered there. */
  shrink(size: Word): void;
  /** Gives the memory back, and ends the registrations of code in it. */
  free(): void;
}

/** An open session. It ends with `close` or the process, and not when the object goes. */
export declare class Session {
  constructor(options?: Options);
  /** From now on samples in `size` bytes from `addr` on belong to `name`. */
  register(code: CodeInfo): Code;
  /** The code with this id is gone; for ids from other threads. */
  unregister(id: bigint): void;
  /**
   * All code that the range touches is gone, whoever has registered it. `unmap`: the memory is unmapped next. Until then nobody reads,
   * writes or runs what is there.
   */
  unregisterRange(addr: Word, size: Word, options?: { unmap?: boolean }): void;
  /** Makes code memory that every profiler which reads ELF files finds names in, with no further step. */
  createRegion(options: RegionOptions): Region;
  /** Makes memory of the program a region, whole pages of it. During the call nobody may write to it or change its protection. */
  adoptRegion(addr: Word, size: Word): Region;
  /** Code memory of at least `size` bytes, in a region that the library makes and shares out. */
  alloc(options: PieceOptions): Piece;
  /** Waits until all that was registered is in the files; 0 stands for the library's own limit. */
  flush(timeoutMs?: number): void;
  /** The same without stopping the event loop. */
  flushAsync(timeoutMs?: number): Promise<void>;
  /** Starts sinks in the running process. */
  enable(sinks?: number): void;
  /** Stops sinks in the running process. */
  disable(sinks?: number): void;
  /** The counters. `flush` first for exact ones. */
  stats(): Stats;
  /** Bits of `Want`: what the library wants to be told at present; 0 if a registration would be of no use. Cheap to ask for. */
  readonly wanted: number;
  /** The text of the last failure of a sink; empty if there was none. */
  lastError(): string;
  /** The file that a sink writes. */
  path(sink: number): string;
  readonly closed: boolean;
  /** Writes what is pending. The files stay, to be read after the recording. The second time is harmless. */
  close(): void;
  /** For `using`: the same as `close`. */
  [Symbol.dispose](): void;
}

/** A call that failed. It has had no effect. */
export declare class JitsymError extends Error {
  private constructor();
  /** The name of the status in C, for instance "JITSYM_ERR_UNKNOWN_ID". */
  readonly code: string;
  /** Its number: one of `Status`. */
  readonly status: number;
}

/** Whether the library can be loaded. Without it only what needs it throws, with the code JITSYM_ERR_LIBRARY. */
export declare function available(): boolean;

/** The version of the library that is running. */
export declare function version(): string;

export declare const Sink: Readonly<{ MAP: 1; JITDUMP: 2; REGION: 4; GDB: 8; UNWINDER: 16; VALGRIND: 32; LOOKUP: 64 }>;
/** How AArch64 code signs its return address. */
export declare const UnwindFlag: Readonly<{ PACIASP: 1; PACIBSP: 2 }>;
export declare const Want: Readonly<{ CODE: 1; LINES: 2; UNWIND: 4; ADOPT: 8; REGION: 16 }>;
export declare const Init: Readonly<
  Record<
    | 'ENV_WINS'
    | 'OFF_BY_DEFAULT'
    | 'NO_UNWIND'
    | 'DROP_WHEN_FULL'
    | 'NO_SPOOL'
    | 'RECOVER'
    | 'FORK_NOW'
    | 'FORK_ALONE'
    | 'REMOVE_FILES'
    | 'REMEMBER'
    | 'ADOPT'
    | 'BRIDGE'
    | 'NO_THREADS',
    number
  >
>;
export declare const MapDialect: Readonly<{ PERF: 0; SIMPLEPERF: 1 }>;
export declare const SpoolState: Readonly<{ NONE: 0; SHARED: 1 }>;
/** Statuses by their names in C, without JITSYM_. */
export declare const Status: Readonly<Record<string, number>>;
