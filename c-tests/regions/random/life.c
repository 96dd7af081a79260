/*
 * The life of code: it comes, runs, moves and dies.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include "random.h"

/* The most bytes of stack that a chain of functions takes. */
enum { STACK_ROOM = 24576 };

/* Code runs while this is held for reading. It is held for writing while memory of code is not executable. */
static pthread_rwlock_t running = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;

static void begin_change(void) {
  if (workload->flips != NO_FLIPS) {
    pthread_rwlock_wrlock(&running);
  }
}

static void begin_run(void) {
  if (workload->flips != NO_FLIPS) {
    pthread_rwlock_rdlock(&running);
  }
}

static void end_either(void) {
  if (workload->flips != NO_FLIPS) {
    pthread_rwlock_unlock(&running);
  }
}

struct put {
  struct worker *worker;
  struct function *function;
};

/* What a part of a function is called, before its number. */
static const char *prefix(const struct function *function, uint32_t index) {
  return index == function->main ? shape_names[function->shape] : index == 0 ? "entry" : "exit";
}

/* Registers all parts, from where they are now. */
static void announce(void *argument) {
  struct worker *worker = ((struct put *)argument)->worker;
  struct function *function = ((struct put *)argument)->function;
  for (uint32_t i = 0; i < function->part_count; i++) {
    struct part *part = &worker->piece.parts[i];
    char name[64];
    snprintf(name, sizeof name, "%s_%" PRIu32, prefix(function, i), function->name);
    jitsym_code code = {0};
    code.struct_size = sizeof code;
    code.addr = (uint64_t)(uintptr_t)function->arena->exec + function->at + part->at;
    code.size = part->size;
    code.name = name;
    code.bytes = function->arena->write + function->at + part->at;
    code.unwind = &part->unwind;
    part->unwind.eh_frame_addr = code.addr + 0x10000;
    check(jitsym_register(session, &code, &function->parts[i].id), "jitsym_register");
  }
}

static void tell_truth(struct function *function) {
  for (uint32_t i = 0; i < function->part_count; i++) {
    uint64_t addr = (uint64_t)(uintptr_t)function->arena->exec + function->at + function->parts[i].at;
    function->parts[i].code = truth_code(addr, function->parts[i].size, prefix(function, i), function->name);
  }
}

static void truth_ends(const struct function *function) {
  for (uint32_t i = 0; i < function->part_count; i++) {
    truth_code_ends(function->parts[i].code);
  }
}

/* Whether there was room. */
int come(struct worker *worker) {
  struct rng *rng = &worker->rng;
  enum shape shape = (enum shape)below(rng, workload->features & ENDS ? SHAPES : ENDS_WITH_CALL);
  struct function *function = &worker->functions[worker->count];
  struct piece *piece = &worker->piece;
  if (worker->count == FUNCTIONS_MAX || truth_is_full()) {
    return 0;
  }
  make_piece(piece, rng, shape, 20480);
  pthread_mutex_lock(&lock);
  function->arena = arenas[below(rng, arena_count)];
  int last = shape == ENDS_WITH_CALL && !function->arena->has_last;
  int has_room = arena_take(function->arena, rng, piece->size, workload->life == REUSES, last, &function->at);
  function->name = names++;
  pthread_mutex_unlock(&lock);
  if (!has_room) {
    return 0;
  }
  worker->count++;
  function->shape = shape;
  function->size = piece->size;
  function->frame = piece->frame;
  function->part_count = piece->part_count;
  function->main = piece->main;
  for (uint32_t i = 0; i < piece->part_count; i++) {
    function->parts[i].at = piece->parts[i].at;
    function->parts[i].size = piece->parts[i].size;
  }
  struct put put = {worker, function};
  /* Some runtimes register code before they make it executable. */
  int early = function->arena->flips != NO_FLIPS && (workload->features & EARLY || one_in(rng, 4));
  begin_change();
  arena_write(function->arena, rng, function->at, piece->bytes, piece->size, early ? announce : NULL, &put);
  if (!early) {
    announce(&put);
  }
  tell_truth(function);
  end_either();
  return 1;
}

/*
 * Whether the protection of memory changes with each death in it, before other threads run: only then perf has the next name of the
 * file at once, and all stacks are right. Workloads of one kind of flips leave that to the next code that comes.
 */
static int flips_at_once(void) {
  return workload->flips >= ANY_FLIPS;
}

static void wipe(struct worker *worker, struct arena *arena, uint64_t at, uint32_t size) {
  if (flips_at_once() || one_in(&worker->rng, 2)) {
    arena_write(arena, &worker->rng, at, NULL, size, NULL, NULL);
  }
}

static void leave_place(struct arena *arena, uint64_t at, uint32_t size) {
  if (workload->life == REUSES) {
    pthread_mutex_lock(&lock);
    arena_give(arena, at, size);
    pthread_mutex_unlock(&lock);
  }
}

static void die(struct worker *worker) {
  uint32_t index = below(&worker->rng, worker->count);
  struct function function = worker->functions[index];
  worker->functions[index] = worker->functions[--worker->count];
  if (flips_at_once()) {
    begin_change();
  }
  if (workload->features & SILENT) {
    /* Nobody tells the library, until other code is registered there. */
  } else if (one_in(&worker->rng, 3)) {
    uint64_t addr = (uint64_t)(uintptr_t)function.arena->exec + function.at;
    check(jitsym_unregister_range(session, addr, function.size, 0), "jitsym_unregister_range");
  } else {
    for (uint32_t i = 0; i < function.part_count; i++) {
      check(jitsym_unregister(session, function.parts[i].id), "jitsym_unregister");
    }
  }
  truth_ends(&function);
  if (!flips_at_once()) {
    begin_change();
  }
  wipe(worker, function.arena, function.at, function.size);
  end_either();
  leave_place(function.arena, function.at, function.size);
}

/* Within its arena. */
void move(struct worker *worker) {
  struct function *function = &worker->functions[below(&worker->rng, worker->count)];
  struct arena *arena = function->arena;
  uint64_t from = function->at, to;
  uint8_t bytes[CODE_MAX];
  pthread_mutex_lock(&lock);
  int has_room = arena_take(arena, &worker->rng, function->size, 1, 0, &to);
  pthread_mutex_unlock(&lock);
  if (!has_room) {
    return;
  }
  memcpy(bytes, arena->exec + from, function->size);
  begin_change();
  arena_write(arena, &worker->rng, to, bytes, function->size, NULL, NULL);
  for (uint32_t i = 0; i < function->part_count; i++) {
    jitsym_move_target target = {0};
    target.struct_size = sizeof target;
    target.addr = (uint64_t)(uintptr_t)arena->exec + to + function->parts[i].at;
    target.bytes = arena->write + to + function->parts[i].at;
    check(jitsym_move(session, function->parts[i].id, &target), "jitsym_move");
  }
  truth_ends(function);
  function->at = to;
  tell_truth(function);
  wipe(worker, arena, from, function->size);
  end_either();
  leave_place(arena, from, function->size);
}

/* ------------------------------------------------------------------------------------------------ running */

typedef void guest(uint64_t rounds, const uint64_t *path);

/*
 * Goes round as guest code does, and keeps all registers but rcx. Its tables say so of rbx, because perf 7 does not know that C
 * functions keep it, and would lose callers whose frame is counted from it.
 */
void native_burn(void);
__asm__(".text\n.globl native_burn\n.type native_burn, @function\nnative_burn:\n.cfi_startproc\n.cfi_same_value %rbx\n"
        "mov %rdi, %rcx\n1: dec %rcx\njnz 1b\nret\n.cfi_endproc\n.size native_burn, . - native_burn\n");

/* Whoever records this steps from here on. The two differ, so that the compiler does not make one of them. */
void enter_code(uint64_t rounds, const uint64_t *path);

__attribute__((noinline)) void enter_code(uint64_t rounds, const uint64_t *path) {
  ((guest *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("" ::: "memory");
}

static __attribute__((noinline)) void enter_at_full_speed(uint64_t rounds, const uint64_t *path) {
  ((guest *)(uintptr_t)path[0])(rounds, path + 1);
  __asm__ volatile("nop" ::: "memory");
}

void run(struct worker *worker) {
  struct rng *rng = &worker->rng;
  uint64_t functions[CHAIN_MAX];
  uint32_t count = 0, room = STACK_ROOM, length = 0, wanted = 1 + below(rng, CHAIN_MAX - 1);
  uint64_t path[2 * CHAIN_MAX + 2];
  const struct function *dropper = NULL;
  int is_ended = 0;
  for (uint32_t i = 0; i < worker->count && workload->features & ENDS && !dropper; i++) {
    dropper = worker->functions[i].shape == DROPS_FRAME ? &worker->functions[i] : NULL;
  }
  for (uint32_t tried = 0; tried < 4 * CHAIN_MAX && count < wanted && !is_ended; tried++) {
    const struct function *function = &worker->functions[below(rng, worker->count)];
    int is_new = function->shape != DROPS_FRAME && (function->shape != ENDS_WITH_CALL || dropper);
    uint64_t addr = (uint64_t)(uintptr_t)function->arena->exec + function->at;
    for (uint32_t i = 0; i < count; i++) {
      is_new &= functions[i] != addr;
    }
    if (!is_new || function->frame + 8 > room) {
      continue;
    }
    room -= function->frame + 8;
    functions[count++] = addr;
    path[length++] = addr;
    if (function->shape == ENDS_WITH_CALL) {
      path[length++] = (uint64_t)(uintptr_t)dropper->arena->exec + dropper->at;
      path[length++] = function->frame + 8;
      is_ended = 1;
    }
  }
  if (!is_ended && one_in(rng, 6)) {
    path[length++] = (uint64_t)(uintptr_t)native_burn;
  }
  path[length] = 0;
  uint64_t duration = (30000 + below(rng, 220000)) / (workload->features & SHORT ? 8 : 1);
  int is_stepped = is_logged && worker->calls < worker->wanted && worker->calls % step_every == 0;
  worker->calls++;
  begin_run();
  if (count > 0 && is_stepped) {
    enter_code(2, path);
  } else if (count > 0) {
    enter_at_full_speed(1 + duration * 3 / (2 * count), path);
  }
  end_either();
}

/* Code comes and dies as the workload says. */
void live(struct worker *worker) {
  struct rng *rng = &worker->rng;
  uint32_t born = workload->life == COMES || workload->features & GROWS ? 1 + below(rng, 4) : 1;
  if (workload->life != COMES && worker->count > 30) {
    die(worker);
  }
  while (born-- > 0) {
    come(worker);
  }
}
