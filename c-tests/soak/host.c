/* The process under test: threads that make calls, and what the model makes of each. */
#include "soak.h"

struct world world;

enum { WAIT_MS = 60000 };

/* A child leaves files too: this process may have one for so many bytes of its own. */
enum { BYTES_FOR_CHILD = 300000 };

uint64_t next_random(struct worker *worker) {
  uint64_t *random = &worker->random;
  *random ^= *random << 13, *random ^= *random >> 7, *random ^= *random << 17;
  return *random * 0x2545f4914f6cdd1d;
}

unsigned random_below(struct worker *worker, unsigned limit) {
  return (unsigned)((next_random(worker) >> 33) % limit);
}

void world_locks(void) {
  pthread_rwlockattr_t attributes;
  CHECK(pthread_rwlockattr_init(&attributes) == 0);
  CHECK(pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) == 0);
  CHECK(pthread_rwlock_init(&world.calls, &attributes) == 0);
  CHECK(pthread_mutex_init(&world.lock, NULL) == 0);
}

void world_empty(void) {
  memset(world.sessions, 0, sizeof world.sessions);
  world.idle_count = world.unused_count = 0;
  for (unsigned i = BLOCKS; i-- > 0;) {
    world.blocks[i].state = UNUSED;
    world.blocks[i].count = 0;
    world.unused[world.unused_count++] = &world.blocks[i];
  }
  room_begin(&world.room);
  atomic_store(&world.live, 0);
}

/* ---- sessions ---- */

static jitsym *open_one(void) {
  jitsym_options options = test_options();
  options.sinks = world.sinks;
  options.flags = world.flags;
  options.max_memory = world.max_memory;
  options.max_wait_ms = WAIT_MS;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  return session;
}

jitsym *any_session(void) {
  for (unsigned i = 0; i < SESSIONS; i++) {
    if (world.sessions[i].handle != NULL) {
      return world.sessions[i].handle;
    }
  }
  return NULL;
}

jitsym *world_open(void) {
  jitsym *session = open_one();
  for (unsigned i = 0; i < SESSIONS; i++) {
    if (world.sessions[i].handle == NULL) {
      world.sessions[i] = (struct open_session){session, 0};
      return session;
    }
  }
  CHECK(!"no place for a session");
  return NULL;
}

void close_all(void) {
  for (unsigned i = 0; i < SESSIONS; i++) {
    if (world.sessions[i].handle != NULL) {
      CHECK_OK(jitsym_close(world.sessions[i].handle));
      CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_close(world.sessions[i].handle));
    }
  }
  world_empty();
}

/* The number of sessions that are open, and one that nobody uses, or a free place if `open` is 0. */
static unsigned sessions_count(struct open_session **one, int open) {
  unsigned count = 0;
  *one = NULL;
  for (unsigned i = 0; i < SESSIONS; i++) {
    struct open_session *session = &world.sessions[i];
    count += session->handle != NULL;
    if (open ? session->handle != NULL && session->users == 0 : session->handle == NULL) {
      *one = session;
    }
  }
  return count;
}

/* While others make calls with the other sessions. */
static void open_or_close(struct worker *worker) {
  struct open_session *place;
  pthread_mutex_lock(&world.lock);
  int open = random_below(worker, 2) == 0;
  unsigned count = sessions_count(&place, !open);
  if (place == NULL || (!open && count < 2) || world.in_flux > 0) {
    pthread_mutex_unlock(&world.lock);
    return;
  }
  world.in_flux = 1;
  jitsym *old = place->handle;
  place->handle = NULL;
  pthread_mutex_unlock(&world.lock);
  jitsym *new = NULL;
  if (open) {
    new = open_one();
  } else {
    CHECK_OK(jitsym_close(old));
    CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_flush(old, 1));
  }
  pthread_mutex_lock(&world.lock);
  *place = (struct open_session){new, 0};
  world.in_flux = 0;
  pthread_mutex_unlock(&world.lock);
}

/* ---- calls ---- */

/* Whether a call has had its effect. */
static int took_effect(jitsym_status status) {
  if (status == JITSYM_ERR_DROPPED && (world.flags & JITSYM_INIT_DROP_WHEN_FULL)) {
    atomic_fetch_add(&world.dropped, 1);
    return 0;
  }
  CHECK_OK(status);
  return 1;
}

static void remember(struct worker *worker, jitsym_id id, int certain) {
  unsigned at = worker->dead_count++ % DEAD_IDS;
  worker->dead[at].id = id;
  worker->dead[at].certain = certain;
}

static int overlap(const struct code *code, uint64_t addr, uint64_t size) {
  return code->addr < addr + size && addr < code->addr + code->size;
}

/* The writer still has to read code that is about to be written over. */
static void settle(jitsym *session, struct block *block, uint64_t addr, uint64_t size) {
  for (unsigned i = 0; i < block->count; i++) {
    if (block->codes[i].stable_there && overlap(&block->codes[i], addr, size)) {
      CHECK_OK(jitsym_flush(session, WAIT_MS));
      block->codes[i].stable_there = 0;
    }
  }
}

static struct code take_code(struct block *block, unsigned number) {
  struct code code = block->codes[number];
  block->codes[number] = block->codes[--block->count];
  block->claimed &= block->count != 0;
  return code;
}

/* The code in a range is there no more. Returns how much it was. */
static unsigned end_overlapped(struct worker *worker, struct block *block, uint64_t addr, uint64_t size) {
  unsigned ended = 0;
  for (unsigned i = block->count; i-- > 0;) {
    if (overlap(&block->codes[i], addr, size)) {
      remember(worker, take_code(block, i).id, 0);
      ended++;
    }
  }
  atomic_fetch_sub(&world.live, ended);
  return ended;
}

/* Puts the bytes where they are to be read, and counts what cannot be. */
static const void *lay_bytes(const struct look *look, uint64_t addr, uint64_t size, uint32_t *flags, int *unreadable) {
  int is_real = arena_of(addr) == REAL;
  void *here = (void *)(uintptr_t)addr;
  *flags = look->bytes == BYTES_STABLE || look->bytes == BYTES_STABLE_THERE ? JITSYM_CODE_STABLE : 0;
  *unreadable = look->bytes == BYTES_AT_ADDRESS && !is_real && (world.sinks & JITSYM_SINK_JITDUMP);
  if (is_real) {
    memcpy(here, look_content(look), size);
  }
  switch (look->bytes) {
    case BYTES_AT_ADDRESS:
      return NULL;
    case BYTES_STABLE_THERE:
      return is_real ? here : look_content(look);
    default:
      return look_content(look);
  }
}

static void do_register(struct worker *worker, jitsym *session, struct block *block, uint64_t addr, uint64_t size) {
  uint32_t number = atomic_fetch_add(&shared->next_number, 1);
  struct look look = look_of(number, size);
  char name[SOAK_NAME_MAX];
  long name_len = name_given(&look, number, name);
  int unreadable, changed;
  settle(session, block, addr, size);
  jitsym_code code = test_code(addr, size, name_len < 0 ? NULL : name);
  code.name_len = name_len < 0 ? 0 : (size_t)name_len;
  code.bytes = lay_bytes(&look, addr, size, &code.flags, &unreadable);
  look_describe(&look, &code, &worker->described);
  int alone = block->count == 0 && look.unwind != JITSYM_UNWIND_NONE;
  uint64_t gap = block->start + block->size - addr - size;
  if (alone && gap >= JITSYM_CODE_GAP_SIZE) {
    code.flags |= JITSYM_CODE_GAP;
  }
  jitsym_id id = 0;
  jitsym_status status = jitsym_register(session, &code, &id);
  if (status == JITSYM_ERR_NO_MEMORY && world.max_memory != 0 && size > 64 << 10) {
    return;
  }
  if (!took_effect(status)) {
    return;
  }
  CHECK(id != 0);
  atomic_fetch_add(&world.overwritten, end_overlapped(worker, block, addr, size));
  block->claimed = (code.flags & JITSYM_CODE_GAP) != 0;
  block->codes[block->count++] =
      (struct code){id, addr, size, number, (code.flags & JITSYM_CODE_STABLE) && arena_of(addr) == REAL};
  named_at[number - first_number] = addr;
  paint_over(&world.paint, addr, size, number);
  changed = name_written(&look, number, addr, name);
  atomic_fetch_add(&world.registered, 1);
  atomic_fetch_add(&world.live, 1);
  atomic_fetch_add(&world.names_changed, (unsigned)changed);
  atomic_fetch_add(&world.unreadable, (unsigned)unreadable);
  atomic_fetch_add(&world.issued_bytes, size + 200);
}

static void do_unregister(struct worker *worker, jitsym *session, struct block *block, unsigned number) {
  jitsym_id id = block->codes[number].id;
  if (!took_effect(jitsym_unregister(session, id))) {
    return;
  }
  take_code(block, number);
  remember(worker, id, 1);
  atomic_fetch_add(&world.unregistered, 1);
  atomic_fetch_sub(&world.live, 1);
}

static void do_range(struct worker *worker, jitsym *session, struct block *block, uint64_t addr, uint64_t size) {
  if (took_effect(jitsym_unregister_range(session, addr, size, 0))) {
    atomic_fetch_add(&world.unregistered, end_overlapped(worker, block, addr, size));
  }
}

/* `to` may be the block that the code is in. */
static void do_move(struct worker *worker, jitsym *session, struct block *from, unsigned number, struct block *to,
                    uint64_t addr) {
  struct code code = from->codes[number];
  struct look look = look_of(code.number, code.size);
  int unreadable;
  settle(session, to, addr, code.size);
  jitsym_move_target target = test_target(addr);
  target.bytes = lay_bytes(&look, addr, code.size, &target.flags, &unreadable);
  if (to->count == 0 && look.unwind != JITSYM_UNWIND_NONE && to->start + to->size - addr - code.size >= JITSYM_CODE_GAP_SIZE) {
    target.flags |= JITSYM_CODE_GAP;
  }
  if (!took_effect(jitsym_move(session, code.id, &target))) {
    return;
  }
  take_code(from, number);
  atomic_fetch_add(&world.overwritten, end_overlapped(worker, to, addr, code.size));
  to->claimed = (target.flags & JITSYM_CODE_GAP) != 0;
  code.addr = addr;
  code.stable_there = (target.flags & JITSYM_CODE_STABLE) && arena_of(addr) == REAL;
  to->codes[to->count++] = code;
  paint_over(&world.paint, addr, code.size, code.number);
  atomic_fetch_add(&world.moved, 1);
  atomic_fetch_add(&world.unreadable, (unsigned)unreadable);
  atomic_fetch_add(&world.issued_bytes, code.size + 200);
}

/* Ids that have ended stay so, whoever has their places now. */
static void probe(struct worker *worker, jitsym *session) {
  unsigned known = worker->dead_count < DEAD_IDS ? worker->dead_count : DEAD_IDS;
  if (known == 0) {
    return;
  }
  unsigned at = random_below(worker, known);
  jitsym_move_target target = test_target(arenas[FREE].start);
  jitsym_status status = worker->dead[at].certain && random_below(worker, 2) == 0
                             ? jitsym_move(session, worker->dead[at].id, &target)
                             : jitsym_unregister(session, worker->dead[at].id);
  if (status == JITSYM_ERR_DROPPED || (status == JITSYM_OK && !worker->dead[at].certain)) {
    CHECK(status == JITSYM_OK || !took_effect(status));
    worker->dead[at].certain = status == JITSYM_OK;
    return;
  }
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, status);
}

static uint64_t size_below(struct worker *worker, uint64_t limit) {
  return 1 + next_random(worker) % limit;
}

/* One call or a few about one block, and perhaps another. */
static void play(struct worker *worker, jitsym *session, struct block *block, struct block *other) {
  uint64_t end = block->start + block->size;
  unsigned number = block->count == 0 ? 0 : random_below(worker, block->count);
  if (block->count == 0) {
    uint64_t size = size_below(worker, random_below(worker, 2) ? block->size : block->size / 2 + 1);
    do_register(worker, session, block, block->start, size);
    return;
  }
  switch (random_below(worker, 10)) {
    case 0:
    case 1:
    case 2:
      if (!block->claimed && block->count < CODES_MAX) {
        uint64_t addr = block->start + next_random(worker) % block->size;
        uint64_t most = end - addr;
        do_register(worker, session, block, addr, size_below(worker, random_below(worker, 2) ? most : most / 4 + 1));
      }
      break;
    case 3:
    case 4:
      do_unregister(worker, session, block, number);
      break;
    case 5: {
      uint64_t addr = block->start + next_random(worker) % block->size;
      do_range(worker, session, block, addr, size_below(worker, end - addr));
      break;
    }
    case 6:
    case 7: {
      uint64_t size = block->codes[number].size;
      struct block *to = other == NULL || random_below(worker, 3) == 0 ? block : other;
      if ((to == block ? block->count == 1 || !block->claimed : !to->claimed && to->count < CODES_MAX) &&
          to->size >= size) {
        uint64_t slack = to->size - size;
        do_move(worker, session, block, number, to, to->start + (slack == 0 ? 0 : next_random(worker) % slack));
      }
      break;
    }
    case 8:
      while (block->count > 0) {
        do_unregister(worker, session, block, block->count - 1);
      }
      break;
    default:
      do_range(worker, session, block, block->start, block->size);
  }
}

/* ---- threads ---- */

/* A block that nobody has: one that is there, or a new one. */
static struct block *take_block(struct worker *worker) {
  if (world.unused_count > 0 && (world.idle_count < 8 || random_below(worker, 3) == 0)) {
    unsigned kind = random_below(worker, 512), where = random_below(worker, 8);
    uint64_t size = kind == 0 ? 1 + random_below(worker, SIZE_MAX_CODE) : kind < 20 ? 8192 : kind < 60 ? 4 : 1024;
    size = 1 + random_below(worker, (unsigned)size);
    int arena = where < 5 ? FREE : where < 7 ? REAL : TOP;
    uint64_t start = room_take(&world.room, arena, size);
    if (start != 0) {
      struct block *block = world.unused[--world.unused_count];
      *block = (struct block){.state = BUSY, .start = start, .size = size};
      return block;
    }
  }
  if (world.idle_count == 0) {
    return NULL;
  }
  /* Often the one that another thread has only just let go of. */
  unsigned at = random_below(worker, 2) ? world.idle_count - 1 : random_below(worker, world.idle_count);
  struct block *block = world.idle[at];
  world.idle[at] = world.idle[--world.idle_count];
  block->state = BUSY;
  return block;
}

static void give_block(struct block *block) {
  if (block == NULL) {
    return;
  }
  if (block->count == 0) {
    block->state = UNUSED;
    room_give(&world.room, block->start, block->size);
    world.unused[world.unused_count++] = block;
  } else {
    block->state = IDLE;
    world.idle[world.idle_count++] = block;
  }
}

static void *work(void *argument) {
  struct worker *worker = argument;
  struct block *block = NULL, *other = NULL;
  while (!atomic_load(&world.stop)) {
    CHECK(pthread_rwlock_rdlock(&world.calls) == 0);
    pthread_mutex_lock(&world.lock);
    struct open_session *session;
    do {
      session = &world.sessions[random_below(worker, SESSIONS)];
    } while (session->handle == NULL);
    session->users++;
    jitsym *handle = session->handle;
    block = take_block(worker);
    other = random_below(worker, 4) == 0 ? take_block(worker) : NULL;
    pthread_mutex_unlock(&world.lock);
    for (unsigned calls = 1 + random_below(worker, 6); block != NULL && calls-- > 0;) {
      play(worker, handle, block, other);
    }
    switch (random_below(worker, 64)) {
      case 0:
        CHECK_OK(jitsym_flush(handle, WAIT_MS));
        break;
      case 1: {
        jitsym_stats stats;
        stats.struct_size = sizeof stats;
        CHECK_OK(jitsym_get_stats(handle, &stats));
        CHECK(stats.write_errors == 0 && stats.sinks_failed == 0 && stats.sinks_running == world.sinks);
        CHECK(stats.dropped <= atomic_load(&world.dropped) + WORKERS_MAX);
        break;
      }
      case 2:
      case 3:
      case 4:
      case 5:
        probe(worker, handle);
        break;
      default:;
    }
    pthread_mutex_lock(&world.lock);
    session->users--;
    give_block(block);
    give_block(other);
    pthread_mutex_unlock(&world.lock);
    if (random_below(worker, 200) == 0) {
      open_or_close(worker);
    }
    if (random_below(worker, 3000) == 0) {
      fork_child(worker, 0);
    }
    CHECK(pthread_rwlock_unlock(&world.calls) == 0);
  }
  return NULL;
}

void check_counters(jitsym *session) {
  jitsym_stats stats = test_stats(session);
  const struct {
    const char *name;
    uint64_t is, should_be;
  } all[] = {
    {"registered", stats.registered, atomic_load(&world.registered)},
    {"moved", stats.moved, atomic_load(&world.moved)},
    {"unregistered", stats.unregistered, atomic_load(&world.unregistered)},
    {"overwritten", stats.overwritten, atomic_load(&world.overwritten)},
    {"live", stats.live, atomic_load(&world.live)},
    {"dropped", stats.dropped, atomic_load(&world.dropped)},
    {"names_changed", stats.names_changed, atomic_load(&world.names_changed)},
    {"unreadable", stats.unreadable, atomic_load(&world.unreadable)},
    {"map_forgotten", stats.map_forgotten, 0},
    {"write_errors", stats.write_errors, 0},
    {"sinks_running", stats.sinks_running, world.sinks},
    {"sinks_failed", stats.sinks_failed, 0},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (all[i].is != all[i].should_be) {
      fprintf(stderr, "pid %d, %u forks deep: %s is %llu, and should be %llu\n", (int)getpid(), world.depth, all[i].name,
              (unsigned long long)all[i].is, (unsigned long long)all[i].should_be);
      _exit(1);
    }
  }
}

/* What is done while all threads wait. */
static void interrupt(struct worker *worker) {
  CHECK(pthread_rwlock_wrlock(&world.calls) == 0);
  switch (random_below(worker, 8)) {
    case 0:
      check_counters(any_session());
      break;
    case 1:
      if (!world.unknown_sessions && random_below(worker, 3) == 0) {
        check_counters(any_session());
        close_all();
        check_counters(world_open());
      }
      break;
    default:
      fork_child(worker, 1);
  }
  CHECK(pthread_rwlock_unlock(&world.calls) == 0);
}

void world_run(struct worker *main_thread, unsigned workers, double seconds, uint64_t bytes) {
  pthread_t threads[WORKERS_MAX];
  static struct worker states[WORKERS_MAX];
  atomic_store(&world.stop, 0);
  for (unsigned i = 0; i < workers; i++) {
    memset(&states[i], 0, sizeof states[i]);
    states[i].random = next_random(main_thread) | 1;
    CHECK(pthread_create(&threads[i], NULL, work, &states[i]) == 0);
  }
  uint64_t begin = test_now(), before = atomic_load(&world.issued_bytes);
  for (double part; (part = (double)(test_now() - begin) / 1e9 / seconds) < 1;) {
    atomic_store(&world.may_fork, atomic_load(&shared->forks) < (double)bytes * part / BYTES_FOR_CHILD + 2);
    test_sleep_ms(1 + random_below(main_thread, 20));
    interrupt(main_thread);
    wait_for_children(2);
    /* So that the files do not become too large. */
    if ((double)(atomic_load(&world.issued_bytes) - before) > (double)bytes * part + 5e5) {
      CHECK(pthread_rwlock_wrlock(&world.calls) == 0);
      test_sleep_ms(20);
      CHECK(pthread_rwlock_unlock(&world.calls) == 0);
    }
  }
  atomic_store(&world.stop, 1);
  for (unsigned i = 0; i < workers; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  wait_for_children(0);
}
