/* Forks, what the children do, and the ways in which a process ends. */
#include "jitsym_control.h"
#include "soak.h"

enum kind { LEAVES_AT_ONCE, EXECUTES, CLOSES, GOES_ON };

/* Nothing of the parent's is taken over: the child begins anew, with files of its own. */
static void begin_anew(void) {
  CHECK(!(world.flags & JITSYM_INIT_FORK_NOW) || !file_exists(test_path_of(getpid(), JITSYM_SINK_MAP).text));
  paint_end(&world.paint);
  paint_begin(&world.paint);
  world_empty();
  world.unknown_sessions = 0;
  world_open();
}

/* What the child of this moment has inherited, as far as it can know that. */
static void inherit(void) {
  paint_end(&world.paint);
  paint_begin(&world.paint);
  uint64_t live = 0;
  world.wild = 0;
  for (unsigned i = 0; i < BLOCKS; i++) {
    const struct block *block = &world.blocks[i];
    if (block->state == BUSY) {
      /* Another thread has it, and has perhaps just made a call. */
      paint_over(&world.paint, block->start, block->size, WILD);
      world.wild = 1;
    }
    for (unsigned k = 0; block->state == IDLE && k < block->count; k++) {
      paint_over(&world.paint, block->codes[k].addr, block->codes[k].size, block->codes[k].number);
      live++;
    }
  }
  atomic_store(&world.live, live);
}

/* It is not known what of the parent's code has come over. */
static void inherit_something(void) {
  atomic_fetch_add(&shared->children_lost, 1);
  for (int i = 0; i < ARENAS; i++) {
    paint_over(&world.paint, arenas[i].start, arenas[i].size, WILD);
  }
  world.idle_count = world.unused_count = 0;
  for (unsigned i = 0; i < BLOCKS; i++) {
    world.blocks[i].state = UNUSED;
    world.unused[world.unused_count++] = &world.blocks[i];
  }
  room_begin(&world.room);
  atomic_store(&world.live, 0);
  world.wild = 1;
}

/* Whether all that was registered before the fork has come over. */
static int inherited_all(jitsym *session) {
  char text[512];
  CHECK_OK(jitsym_last_error(session, text, sizeof text));
  CHECK(text[0] == 0 || strstr(text, "the fork did not wait") != NULL);
  return text[0] == 0;
}

/* Ends what is not known, so that from here on everything is. */
static void tame(jitsym *session) {
  if (!world.wild) {
    return;
  }
  for (int i = 0; world.live == 0 && world.idle_count == 0 && i < ARENAS; i++) {
    CHECK_OK(jitsym_unregister_range(session, arenas[i].start, arenas[i].size, 0));
  }
  for (unsigned i = 0; i < BLOCKS; i++) {
    struct block *block = &world.blocks[i];
    if (block->state == BUSY) {
      CHECK_OK(jitsym_unregister_range(session, block->start, block->size, 0));
      block->state = UNUSED;
      room_give(&world.room, block->start, block->size);
      world.unused[world.unused_count++] = block;
    }
  }
  atomic_store(&world.unregistered, test_stats(session).unregistered);
}

_Noreturn static void go_on(struct worker *worker, int kill) {
  jitsym *session = any_session();
  jitsym_stats stats;
  stats.struct_size = sizeof stats;
  jitsym_status status = random_below(worker, 2) ? jitsym_get_stats(session, &stats) : jitsym_flush(session, 60000);
  if (status == JITSYM_ERR_FORKED) {
    atomic_fetch_add(&shared->children_lost, !(world.flags & JITSYM_INIT_FORK_ALONE));
    begin_anew();
    session = any_session();
  } else {
    CHECK_OK(status);
    CHECK(!(world.flags & JITSYM_INIT_FORK_ALONE));
    if (!inherited_all(session)) {
      inherit_something();
    }
    CHECK_OK(jitsym_get_stats(session, &stats));
    CHECK(world.wild ? stats.inherited >= atomic_load(&world.live) : stats.inherited == atomic_load(&world.live));
    tame(session);
  }
  check_counters(session);
  world_run(worker, 1 + random_below(worker, 2), 0.02 + random_below(worker, 300) / 1e3, 1 << 19);
  world_end(worker, kill);
}

/* The others make no call that needs files; with FORK_NOW they have some all the same. */
static void leave(struct worker *worker, enum kind kind, int quiet) {
  jitsym *session = any_session();
  if (world.flags & JITSYM_INIT_FORK_NOW) {
    uint32_t sink = world.sinks & JITSYM_SINK_MAP ? JITSYM_SINK_MAP : JITSYM_SINK_JITDUMP;
    int has_files = file_exists(test_path_of(getpid(), sink).text);
    char text[8];
    jitsym_status status = jitsym_last_error(session, text, sizeof text);
    CHECK(has_files ? status == JITSYM_OK : status == JITSYM_ERR_FORKED);
    if (has_files) {
      if (!inherited_all(session)) {
        inherit_something();
      }
      write_truth(0, 0);
    } else {
      atomic_fetch_add(&shared->children_lost, 1);
    }
  }
  switch (kind) {
    case EXECUTES:
      execl("/bin/true", "true", (char *)NULL);
      _exit(127);
    case CLOSES:
      for (unsigned i = 0; i < SESSIONS; i++) {
        if (world.sessions[i].handle != NULL && (quiet || world.sessions[i].users == 0)) {
          jitsym_status status = jitsym_close(world.sessions[i].handle);
          CHECK(status == JITSYM_OK || status == JITSYM_ERR_FORKED);
        }
      }
      exit(0);
    default:
      if (random_below(worker, 2)) {
        exit(0);
      }
      _exit(0);
  }
}

_Noreturn static void child(struct worker *worker, int quiet, enum kind kind, int kill) {
  test_inherits_threads = 1;
  atomic_fetch_add(&shared->forks, 1);
  world_locks();
  world.depth++;
  world.child_count = 0;
  world.unknown_sessions |= world.in_flux != 0;
  world.in_flux = 0;
  for (unsigned i = 0; i < SESSIONS; i++) {
    world.sessions[i].users = 0;
  }
  atomic_store(&world.registered, 0);
  atomic_store(&world.moved, 0);
  atomic_store(&world.unregistered, 0);
  atomic_store(&world.overwritten, 0);
  atomic_store(&world.names_changed, 0);
  atomic_store(&world.unreadable, 0);
  atomic_store(&world.dropped, 0);
  if (kind != GOES_ON) {
    if (world.flags & JITSYM_INIT_FORK_NOW) {
      inherit();
    }
    leave(worker, kind, quiet);
  }
  inherit();
  CHECK(!quiet || !world.wild);
  go_on(worker, kill);
}

void fork_child(struct worker *worker, int quiet) {
  pthread_mutex_lock(&world.lock);
  if (world.depth >= 2 || world.child_count >= 4 || !atomic_load(&world.may_fork)) {
    pthread_mutex_unlock(&world.lock);
    return;
  }
  unsigned choice = random_below(worker, 8);
  enum kind kind = choice < 5 ? GOES_ON : choice == 5 ? LEAVES_AT_ONCE : choice == 6 ? EXECUTES : CLOSES;
  int kill = kind == GOES_ON && random_below(worker, 4) == 0;
  uint64_t seed = next_random(worker) | 1;
  fflush(NULL);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    worker->random = seed;
    child(worker, quiet, kind, kill);
  }
  world.children[world.child_count] = pid;
  world.children_killed[world.child_count++] = kill;
  pthread_mutex_unlock(&world.lock);
}

void wait_for_children(unsigned at_most) {
  for (unsigned turns = 0;;) {
    pthread_mutex_lock(&world.lock);
    for (unsigned i = 0; i < world.child_count; i++) {
      int status = 0;
      pid_t pid = waitpid(world.children[i], &status, WNOHANG);
      CHECK(pid == 0 || pid == world.children[i]);
      if (pid != 0) {
        int good = world.children_killed[i] ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0;
        if (!good) {
          fprintf(stderr, "child %d: wait status %#x\n", (int)pid, (unsigned)status);
          _exit(1);
        }
        world.child_count--;
        world.children[i] = world.children[world.child_count];
        world.children_killed[i] = world.children_killed[world.child_count];
        i--;
      }
    }
    unsigned left = world.child_count;
    pthread_mutex_unlock(&world.lock);
    if (left <= at_most) {
      return;
    }
    CHECK(test_turn_of(&turns, TEST_TURNS));
  }
}

_Noreturn void world_end(struct worker *worker, int kill) {
  jitsym *session = any_session();
  if (kill) {
    jitsym_stats stats;
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_get_stats(session, &stats));
    if (stats.spool != JITSYM_SPOOL_SHARED || random_below(worker, 4) == 0) {
      CHECK_OK(test_flush(session));
    }
    write_truth(0, 1);
    raise(SIGKILL);
  }
  unsigned choice = random_below(worker, 5);
  if (choice < 2) {
    /* With everything open, and what is pending not written. */
    write_truth(0, 0);
    exit(0);
  }
  check_counters(session);
  if (choice == 2 || world.unknown_sessions) {
    write_truth(1, 0);
    _exit(0);
  }
  if (choice == 3) {
    /* Every id that should be live is. */
    for (unsigned i = 0; i < BLOCKS; i++) {
      for (struct block *block = &world.blocks[i]; block->state == IDLE && block->count > 0; block->count--) {
        jitsym_status status;
        do {
          status = jitsym_unregister(session, block->codes[block->count - 1].id);
          atomic_fetch_add(&world.dropped, status == JITSYM_ERR_DROPPED);
        } while (status == JITSYM_ERR_DROPPED && (world.flags & JITSYM_INIT_DROP_WHEN_FULL));
        CHECK_OK(status);
        atomic_fetch_add(&world.unregistered, 1);
        atomic_fetch_sub(&world.live, 1);
      }
    }
    check_counters(session);
    CHECK(atomic_load(&world.live) == 0);
  }
  write_truth(1, 0);
  close_all();
  _exit(0);
}
