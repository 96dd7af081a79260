/*
 * Registers LuaJIT's traces and exit stubs with libjitsym: names, lines, and frames that are exact at each instruction.
 *
 * build.sh includes this file at the end of lj_trace.c. The file is for x86-64, POSIX and GC64. If no environment variable
 * enables it, LuaJIT behaves as before. Without the library, jitsym_dl.h writes the perf map.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "lj_jitsym.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "jitsym_dl.h"

#include "lj_debug.h"
#include "lj_strfmt.h"
#include "lj_target.h"

/* The session of all Lua states of the process. The library writes what is pending when the process ends. */
static jitsym *jitsym_session;
static pthread_once_t jitsym_once = PTHREAD_ONCE_INIT;
static pthread_key_t jitsym_thread;
static char jitsym_directory[4096];

/*
 * A lock for changes of executable memory. While the library registers code, it may exchange executable memory for a region.
 * During this time, no other thread may unmap an area or change its protection, because adjacent areas of several states are
 * one mapping.
 */
static pthread_mutex_t jitsym_lock = PTHREAD_MUTEX_INITIALIZER;

static void jitsym_enter(void)
{
  pthread_mutex_lock(&jitsym_lock);
}

static void jitsym_leave(void)
{
  pthread_mutex_unlock(&jitsym_lock);
}

/* The thread that held the lock does not exist in the child. */
static void jitsym_in_child(void)
{
  pthread_mutex_init(&jitsym_lock, NULL);
}

static void jitsym_end_thread(void *trace);

/* LUAJIT_JITSYM=1 enables the sinks that the library's own variables name, or all sinks if these name none. Without
 * LUAJIT_JITSYM, the library's variables decide. */
static void jitsym_begin(void)
{
  jitsym_options options = JITSYM_OPTIONS;
  const char *wanted = getenv("LUAJIT_JITSYM");
  if (wanted == NULL || *wanted == 0) {
    if (getenv("JITSYM") == NULL && getenv("JITSYM_ADOPT") == NULL) return;
    options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
  }
  if (pthread_key_create(&jitsym_thread, jitsym_end_thread) != 0) return;
  if (getcwd(jitsym_directory, sizeof jitsym_directory) == NULL) jitsym_directory[0] = 0;
  pthread_atfork(NULL, NULL, jitsym_in_child);
  jitsym_init(&options, &jitsym_session);
}

void lj_jitsym_open(void)
{
  pthread_once(&jitsym_once, jitsym_begin);
}

static int jitsym_wants(uint32_t what)
{
  return jitsym_session != NULL && (jitsym_wanted(jitsym_session) & what) != 0;
}

/* -- Frames -------------------------------------------------------------- */

enum { JITSYM_RBX = 3, JITSYM_RBP = 6, JITSYM_RSP = 7 };

/* The registers that the interpreter has saved. The last two are saved on the way into a trace. */
static const jitsym_saved_register jitsym_saved[] = {
  { JITSYM_RBP, -16 }, { JITSYM_RBX, -24 }, { 15, -32 }, { 14, -40 }, { 12, -80 }, { 13, -88 },
};

/* Returns the size of `add rsp, imm` at `p` and stores its operand in `by`. Returns 0 for another instruction. */
static int jitsym_is_adjustment(const MCode *p, const MCode *end, int32_t *by)
{
  if (end - p >= 4 && p[0] == 0x48 && p[1] == 0x83 && p[2] == 0xc4) {
    *by = (int8_t)p[3];
    return 4;
  }
  if (end - p >= 7 && p[0] == 0x48 && p[1] == 0x81 && p[2] == 0xc4) {
    memcpy(by, p + 3, 4);
    return 7;
  }
  return 0;
}

/* Returns the offset of the last jump of a trace that does not loop, if the frame is released right before this jump.
 * Otherwise returns 0. */
static uint32_t jitsym_tail(const GCtrace *T)
{
  const MCode *jump = T->mcode + T->szmcode - 5;
  int32_t by;
  if (T->spadjust == 0 || T->szmcode < 12 || *jump != 0xe9) return 0;
  if ((jitsym_is_adjustment(jump - 4, jump, &by) == 4 && by == T->spadjust) ||
      (jitsym_is_adjustment(jump - 7, jump, &by) == 7 && by == T->spadjust))
    return T->szmcode - 5;
  return 0;
}

/*
 * Returns the offset after `add rsp, -grown` in the head of a trace. In a root trace, this is the first instruction. In a
 * side trace, loads from the parent's frame come first. The instruction is recognised by the store of the trace's number,
 * which follows it.
 */
static uint32_t jitsym_head(const GCtrace *T, int32_t grown)
{
  const MCode *p = T->mcode, *end = p + T->szmcode;
  int32_t by;
  for (; p < end; p++) {
    int size = *p == 0x48 ? jitsym_is_adjustment(p, end, &by) : 0;
    const MCode *store = p + size;
    if (size != 0 && by == -grown && end - store >= 7 && store[0] == 0x41 && store[1] == 0xc7 && (store[2] & 0xbf) == 0x86) {
      uint32_t number;
      const MCode *operand = store + (store[2] == 0x86 ? 7 : 4);
      if (end - operand < 4) return 0;
      memcpy(&number, operand, 4);
      if (number == T->traceno) return (uint32_t)(store - T->mcode);
    }
  }
  return 0;
}

static uint32_t jitsym_frame(jit_State *J, GCtrace *T, jitsym_unwind_row rows[3])
{
  const int32_t frame = CFRAME_SIZE_JIT;
  TraceNo parent = T->ir[REF_BASE].op1;
  int32_t inherited = parent ? traceref(J, parent)->spadjust : 0;
  uint32_t count = 0, tail = jitsym_tail(T);
  jitsym_unwind_row row = { 0, JITSYM_RSP, 0, sizeof jitsym_saved / sizeof *jitsym_saved, jitsym_saved };
  row.cfa_offset = frame + inherited;
  rows[count++] = row;
  if (T->spadjust != inherited) {
    row.offset = jitsym_head(T, T->spadjust - inherited);
    row.cfa_offset = frame + T->spadjust;
    if (row.offset == 0) return 0;
    rows[count++] = row;
  }
  if (tail != 0) {
    row.offset = tail;
    row.cfa_offset = frame;
    rows[count++] = row;
  }
  return count;
}

/* -- Lines --------------------------------------------------------------- */

#define JITSYM_REFS 0x8000
#define JITSYM_PATHS 16
#define JITSYM_PATH 1024

/* The IR instructions from `ref` on, up to the next step, belong to this bytecode. */
typedef struct {
  IRRef ref;
  GCproto *pt;
  const BCIns *pc;
} JitsymStep;

/* The steps of the trace that this thread compiles, and its code so far. Steps are in the order of the IR, including the
 * copies for loops. */
typedef struct {
  jit_State *J;  /* The state whose trace that is; NULL if lines are not wanted. */
  uint32_t steps_num;
  JitsymStep steps[JITSYM_REFS];
  MCode *mcode[JITSYM_REFS];  /* Of an IR instruction that has code: its first byte. */
  uint32_t mcode_num;
  jitsym_line lines[JITSYM_REFS];
  uint32_t paths_num;
  const char *chunks[JITSYM_PATHS];
  char paths[JITSYM_PATHS][JITSYM_PATH];
} JitsymTrace;

static __thread JitsymTrace *jitsym_trace;

static void jitsym_end_thread(void *trace)
{
  munmap(trace, sizeof(JitsymTrace));
  jitsym_trace = NULL;
}

/* Returns the trace of a state. While the state records, it may call a C function that makes another state record on this
 * thread. */
static JitsymTrace *jitsym_trace_of(jit_State *J)
{
  return jitsym_trace != NULL && jitsym_trace->J == J ? jitsym_trace : NULL;
}

/* Called when a recording begins. */
void lj_jitsym_recorder(jit_State *J)
{
  int wanted = jitsym_wants(JITSYM_WANT_LINES);
  if (jitsym_trace == NULL && wanted) {
    /* Pages that no trace needs are never accessed. */
    void *trace = mmap(NULL, sizeof *jitsym_trace, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0);
    if (trace == MAP_FAILED) return;
    if (pthread_setspecific(jitsym_thread, trace) != 0) { munmap(trace, sizeof *jitsym_trace); return; }
    jitsym_trace = trace;
  }
  if (jitsym_trace == NULL) return;
  jitsym_trace->J = wanted ? J : NULL;
  jitsym_trace->steps_num = 0;
  memset(jitsym_trace->mcode, 0, jitsym_trace->mcode_num * sizeof *jitsym_trace->mcode);
  jitsym_trace->mcode_num = 0;
}

static void jitsym_note_step(IRRef ref, GCproto *pt, const BCIns *pc)
{
  JitsymTrace *trace = jitsym_trace;
  JitsymStep step = { ref, pt, pc };
  /* The last step is dropped if it has no IR, or if its IR was undone because a loop could not be made. */
  while (trace->steps_num != 0 && trace->steps[trace->steps_num-1].ref >= ref) trace->steps_num--;
  if (trace->steps_num < JITSYM_REFS) trace->steps[trace->steps_num++] = step;
}

/* Called when the next bytecode is recorded. */
void lj_jitsym_recins(jit_State *J)
{
  if (jitsym_trace_of(J) != NULL && J->pt != NULL) jitsym_note_step(J->cur.nins, J->pt, J->pc);
}

static const JitsymStep *jitsym_step_of(IRRef ref)
{
  uint32_t from = 0, to = jitsym_trace->steps_num;
  while (from < to) {
    uint32_t middle = from + (to - from) / 2;
    if (jitsym_trace->steps[middle].ref <= ref) from = middle + 1; else to = middle;
  }
  return from == 0 ? NULL : &jitsym_trace->steps[from-1];
}

/* Called when `ref` is copied for the body of a loop. */
void lj_jitsym_copyins(jit_State *J, IRRef ref)
{
  const JitsymStep *step;
  if (jitsym_trace_of(J) == NULL) return;
  step = jitsym_step_of(ref);
  if (step != NULL) jitsym_note_step(J->cur.nins, step->pt, step->pc);
}

/* Called when code of one IR instruction was made. Code is made backwards, and may be made again. */
void lj_jitsym_asmins(jit_State *J, IRRef ref, MCode *mcode)
{
  uint32_t index = ref - REF_BIAS;
  if (jitsym_trace_of(J) == NULL || index >= JITSYM_REFS) return;
  jitsym_trace->mcode[index] = mcode;
  if (index >= jitsym_trace->mcode_num) jitsym_trace->mcode_num = index + 1;
}

/* Returns the absolute path of a chunk that is a file, or NULL. */
static const char *jitsym_path_of(GCproto *pt)
{
  JitsymTrace *trace = jitsym_trace;
  const char *name = proto_chunknamestr(pt);
  char *path;
  uint32_t i;
  if (*name != '@') return NULL;
  for (i = 0; i < trace->paths_num; i++)
    if (trace->chunks[i] == name) return trace->paths[i];
  if (i == JITSYM_PATHS) return NULL;
  path = trace->paths[i];
  trace->chunks[i] = name;
  trace->paths_num++;
  if (name[1] == '/' || jitsym_directory[0] == 0)
    snprintf(path, JITSYM_PATH, "%s", name + 1);
  else
    snprintf(path, JITSYM_PATH, "%s/%s", jitsym_directory, name + (strncmp(name, "@./", 3) == 0 ? 3 : 1));
  return path;
}

/* Makes a row for each change of line. Code before the first IR instruction gets the line of that instruction. */
static uint32_t jitsym_lines(GCtrace *T)
{
  JitsymTrace *trace = jitsym_trace;
  const JitsymStep *step;
  uint32_t count = 0, next = 0, last = 0;
  IRRef ref;
  const MCode *at = T->mcode, *end = T->mcode + T->szmcode;
  trace->paths_num = 0;
  for (ref = REF_FIRST; ref - REF_BIAS < trace->mcode_num; ref++) {
    MCode *mcode = trace->mcode[ref - REF_BIAS];
    jitsym_line row = { 0, 0, 0, 0, NULL };
    if (mcode < at || mcode >= end) continue;
    at = mcode;
    while (next < trace->steps_num && trace->steps[next].ref <= ref) next++;
    if (next == 0 || (count != 0 && next == last)) continue;
    step = &trace->steps[next-1];
    last = next;
    row.offset = count == 0 ? 0 : (uint32_t)(mcode - T->mcode);
    row.line = (uint32_t)lj_debug_line(step->pt, proto_bcpos(step->pt, step->pc));
    row.file = jitsym_path_of(step->pt);
    if (row.line == 0 || row.file == NULL) continue;
    if (count != 0 && trace->lines[count-1].line == row.line && trace->lines[count-1].file == row.file) continue;
    if (count != 0 && trace->lines[count-1].offset == row.offset) count--;
    trace->lines[count++] = row;
  }
  return count;
}

/* -- Registration -------------------------------------------------------- */

static void jitsym_announce(const jitsym_code *code)
{
  jitsym_enter();
  jitsym_register(jitsym_session, code, NULL);
  jitsym_leave();
}

void lj_jitsym_addtrace(jit_State *J, GCtrace *T)
{
  char name[sizeof "TRACE_" + STRFMT_MAXBUF_INT] = "TRACE_";
  GCproto *pt = &gcref(T->startpt)->pt;
  const char *chunk = proto_chunknamestr(pt);
  jitsym_code code = JITSYM_CODE(T->mcode, T->szmcode, name);
  jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_ROWS);
  jitsym_unwind_row rows[3];
  if (!jitsym_wants(JITSYM_WANT_CODE)) return;

  /* snprintf is not used, because it takes as long as the registration. */
  code.name_len = (size_t)(lj_strfmt_wint(name + strlen(name), (int32_t)T->traceno) - name);
  code.file = *chunk == '@' || *chunk == '=' ? chunk + 1 : "(string)";
  code.line = (uint32_t)lj_debug_line(pt, proto_bcpos(pt, mref(T->startpc, const BCIns)));
  code.bytes = T->mcode;
  unwind.row_count = jitsym_frame(J, T, rows);
  unwind.rows = rows;
  unwind.row_size = sizeof *rows;
  if (unwind.row_count != 0) code.unwind = &unwind;
  if (jitsym_trace_of(J) != NULL) {
    code.line_count = jitsym_lines(T);
    code.lines = jitsym_trace->lines;
    code.line_size = sizeof *code.lines;
  }
  jitsym_announce(&code);
}

/* Registers exit stubs. They need no frame description, because their frame is that of the trace that was left. */
void lj_jitsym_addstubs(ExitNo first, MCode *begin, MCode *end)
{
  char name[64];
  jitsym_code code = JITSYM_CODE(begin, end - begin, name);
  if (!jitsym_wants(JITSYM_WANT_CODE)) return;
  snprintf(name, sizeof name, "exit stubs %d-%d", (int)first, (int)first + EXITSTUBS_PER_GROUP - 1);
  code.bytes = begin;
  jitsym_announce(&code);
}

/* -- Areas --------------------------------------------------------------- */

/*
 * A collected trace stays registered until its area is freed, because no other code uses its addresses before. Unregistering
 * each trace would begin a new generation of the area's names without any use.
 *
 * `jitsym_kept` lists areas that no longer contain code. If memory is adopted, such areas are kept for the next code instead
 * of being unmapped, because code that replaces dead code costs less than a new region.
 */
#define JITSYM_KEPT 16

static struct { void *area; size_t size; } jitsym_kept[JITSYM_KEPT];

/* Called when all code in the area is dead. Returns whether the area is kept. */
int lj_jitsym_keeparea(void *area, size_t size)
{
  int i, kept = 0;
  if (jitsym_session == NULL) return 0;
  jitsym_enter();
  for (i = 0; i < JITSYM_KEPT && !kept && jitsym_wants(JITSYM_WANT_ADOPT); i++) {
    if (jitsym_kept[i].area == NULL) {
      /* The size is stored first, because a child may be forked between the two stores. */
      jitsym_kept[i].size = size;
      __atomic_store_n(&jitsym_kept[i].area, area, __ATOMIC_RELEASE);
      kept = 1;
    }
  }
  if (kept) jitsym_unregister_range(jitsym_session, (uint64_t)(uintptr_t)area, size, 0);
  jitsym_leave();
  return kept;
}

/* Returns a kept area, readable and writable, or NULL if there is none of that size. */
void *lj_jitsym_takearea(size_t size)
{
  void *area = NULL;
  int i;
  if (jitsym_session == NULL) return NULL;
  jitsym_enter();
  for (i = 0; i < JITSYM_KEPT && area == NULL; i++) {
    if (jitsym_kept[i].area != NULL && jitsym_kept[i].size == size &&
        mprotect(jitsym_kept[i].area, size, PROT_READ|PROT_WRITE) == 0) {
      area = jitsym_kept[i].area;
      jitsym_kept[i].area = NULL;
    }
  }
  jitsym_leave();
  return area;
}

/* lj_mcode.c calls this function and the next function in place of the system's functions. */
int lj_jitsym_mprotect(void *area, size_t size, int protection)
{
  int done;
  if (jitsym_session == NULL) return mprotect(area, size, protection);
  jitsym_enter();
  done = mprotect(area, size, protection);
  jitsym_leave();
  return done;
}

int lj_jitsym_munmap(void *area, size_t size)
{
  int done;
  if (jitsym_session == NULL) return munmap(area, size);
  jitsym_enter();
  jitsym_unregister_range(jitsym_session, (uint64_t)(uintptr_t)area, size, JITSYM_RANGE_UNMAP);
  done = munmap(area, size);
  jitsym_leave();
  return done;
}
