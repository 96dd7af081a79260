/*
 * The code allocator as the program that uses it sees it: what each call refuses and by which status, and what memory it gives.
 * What profilers see there is held against the truth in tests/regions.rs.
 *
 * Usage: alloc_calls DIR [PART]: `no-file` for a directory where files cannot be had, `full` for one with little room.
 * x86-64 only.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "jitsym_control.h"
#include "jitsym_region.h"
#include "maps.h"
#include "region_code.h"

static jitsym_region alloc_near(jitsym *session, uint64_t size, uint64_t alignment, const void *near_addr) {
  jitsym_region piece;
  memset(&piece, 0, sizeof piece);
  piece.struct_size = sizeof piece;
  CHECK_OK(jitsym_alloc(session, size, alignment, (uintptr_t)near_addr, &piece));
  CHECK(piece.size >= size && piece.size < size + 64 && (uintptr_t)piece.exec % 64 == 0);
  return piece;
}

static jitsym_region alloc(jitsym *session, uint64_t size) {
  return alloc_near(session, size, 0, NULL);
}

/* Memory that can be written in one view and run in the other, and neither in both. */
static void check_views(jitsym_region piece, uint32_t value) {
  CHECK(has_flags(piece.exec, "r-xs") && has_flags(piece.write, "rw-s"));
  put_code(piece.write, value);
  CHECK(run_code(piece.exec) == value);
}

static void check_freed(jitsym *session, void *exec) {
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_free(session, exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_shrink(session, exec, 1));
}

static void refuses(void) {
  jitsym *session = open_regions();
  jitsym_region piece, untouched, first;
  memset(&piece, 0, sizeof piece);
  piece.struct_size = sizeof piece;
  piece.exec = &untouched;
  untouched = piece;

  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_alloc(NULL, 1, 0, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_NULL, jitsym_alloc(session, 1, 0, 0, NULL));
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_alloc(session, 0, 0, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_alloc(session, (UINT64_C(1) << 30) + 1, 0, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_alloc(session, UINT64_MAX, 0, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_alloc(session, 1, 8192, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_ALIGNMENT, jitsym_alloc(session, 1, 48, 0, &piece));
  /* No program has memory there. */
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_alloc(session, 1, 0, UINT64_MAX, &piece));
  piece.struct_size = 8;
  CHECK_STATUS(JITSYM_ERR_STRUCT_SIZE, jitsym_alloc(session, 1, 0, 0, &piece));
  piece.struct_size = sizeof piece;
  CHECK(memcmp(&piece, &untouched, sizeof piece) == 0);
  CHECK(test_stats(session).regions == 0);

  check_freed(session, NULL);
  check_freed(session, &piece);
  first = alloc(session, 1);
  piece = alloc(session, 1000);
  check_freed(session, (unsigned char *)piece.exec + 64);
  check_freed(session, piece.write);
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, jitsym_shrink(session, piece.exec, 0));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_shrink(session, piece.exec, piece.size + 1));
  CHECK_STATUS(JITSYM_ERR_TOO_LARGE, jitsym_shrink(session, piece.exec, UINT64_MAX));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_shrink(NULL, piece.exec, 1));
  CHECK_STATUS(JITSYM_ERR_SESSION, jitsym_free(NULL, piece.exec));
  /* The region that the pieces lie in begins with the first one, and is nobody else's to change. */
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_release(session, first.exec));
  CHECK_STATUS(JITSYM_ERR_REGION, jitsym_region_grow(session, first.exec, 1 << 20));
  check_views(first, 1);
  check_views(piece, 2);
  CHECK_OK(jitsym_shrink(session, piece.exec, piece.size));
  CHECK_OK(jitsym_free(session, piece.exec));
  check_freed(session, piece.exec);
  CHECK_OK(jitsym_close(session));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_alloc(session, 1, 0, 0, &piece));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_free(session, first.exec));
  CHECK_STATUS(JITSYM_ERR_CLOSED, jitsym_shrink(session, first.exec, 1));
}

/* Small pieces share a region; each is as was asked for. */
static void gives_memory(void) {
  enum { PIECES = 200 };

  jitsym *session = open_regions();
  jitsym_region pieces[PIECES];
  for (uint32_t i = 0; i < PIECES; i++) {
    uint64_t alignment = UINT64_C(1) << (i % 13);
    pieces[i] = alloc_near(session, 1 + i * 37 % 5000, alignment, i % 2 ? (void *)(uintptr_t)&gives_memory : NULL);
    CHECK((uintptr_t)pieces[i].exec % alignment == 0);
    if (i % 2) {
      int64_t distance = (int64_t)((uintptr_t)pieces[i].exec - (uintptr_t)&gives_memory);
      CHECK(distance == (int32_t)distance);
    }
    check_views(pieces[i], i);
  }
  CHECK(test_stats(session).regions <= 2);
  CHECK(is_of_file(pieces[0].exec, "/jit"));
  for (uint32_t i = 0; i < PIECES; i++) {
    CHECK(run_code(pieces[i].exec) == i);
    CHECK_OK(jitsym_free(session, pieces[i].exec));
  }
  jitsym_stats before = test_stats(session);
  jitsym_region large = alloc(session, 100 << 20);
  check_views(large, 1);
  CHECK_OK(jitsym_free(session, large.exec));
  /* A region of its own is gone with it. */
  CHECK(mapping_at(large.exec).start == 0 && mapping_at(large.write).start == 0);
  CHECK(test_stats(session).regions == before.regions);
  CHECK_OK(jitsym_close(session));
}

/* The end of memory is the end of the code there, and other code can be registered in its place. */
static void ends_registrations(void) {
  jitsym *session = open_regions();
  jitsym_region piece = alloc(session, 128), other = alloc(session, 128);
  put_code(piece.write, 1);
  put_code((unsigned char *)piece.write + 64, 2);
  put_code(other.write, 3);
  jitsym_id first = announce(session, piece.exec, "first"), second = announce(session, (unsigned char *)piece.exec + 64, "second");
  jitsym_id third = announce(session, other.exec, "third");
  CHECK(test_stats(session).live == 3);
  CHECK_OK(jitsym_free(session, piece.exec));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.live == 1 && stats.unregistered == 2 && stats.region_code == 3);
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, first));
  CHECK_STATUS(JITSYM_ERR_UNKNOWN_ID, jitsym_unregister(session, second));
  /* One that has ended already is no trouble. */
  CHECK_OK(jitsym_unregister(session, third));
  CHECK_OK(jitsym_free(session, other.exec));
  CHECK(test_stats(session).live == 0);
  CHECK_OK(jitsym_close(session));
}

/* Memory outlives the session, and belongs to the process. */
static void sessions_end(void) {
  jitsym *session = open_regions();
  jitsym_region piece = alloc(session, 100), other = alloc(session, 100);
  check_views(piece, 1);
  CHECK_OK(jitsym_close(session));
  CHECK(run_code(piece.exec) == 1);
  check_views(piece, 2);
  session = open_regions();
  jitsym_region next = alloc(session, 100);
  CHECK(next.exec != piece.exec && next.exec != other.exec);
  CHECK_OK(jitsym_free(session, piece.exec));
  CHECK_OK(jitsym_close(session));
  check_views(other, 3);
}

/* Without a sink the memory is the same. Code gets a file as soon as there is a sink. */
static void without_sink(void) {
  setenv("JITSYM", "off", 1);
  jitsym *session = test_open_flags(0, JITSYM_INIT_OFF_BY_DEFAULT);
  jitsym_region piece = alloc(session, 100), after;
  check_views(piece, 1);
  CHECK(!is_of_file(piece.exec, "/jit"));
  CHECK_OK(jitsym_free(session, piece.exec));
  piece = alloc(session, 100);
  CHECK_OK(jitsym_enable(session, JITSYM_SINK_REGION));
  after = alloc(session, 100);
  check_views(after, 2);
  CHECK(is_of_file(after.exec, "/jit"));
  check_views(piece, 3);
  CHECK_OK(jitsym_free(session, piece.exec));
  CHECK_OK(jitsym_close(session));
  unsetenv("JITSYM");
}

/* However much comes and goes, the file stays as large as what lives, and some. */
static void reuses(void) {
  enum { LIVE = 64, LENGTH = 5000 };

  jitsym *session = open_regions();
  jitsym_region pieces[LIVE];
  uintptr_t low = UINTPTR_MAX, high = 0;
  int rounds = test_light ? 2000 : 20000;
  memset(pieces, 0, sizeof pieces);
  for (int i = 0; i < rounds; i++) {
    jitsym_region *piece = &pieces[i * 31 % LIVE];
    if (piece->exec != NULL) {
      CHECK_OK(jitsym_free(session, piece->exec));
    }
    *piece = alloc(session, LENGTH);
    memset(piece->write, 0xcc, LENGTH);
    put_code(piece->write, (uint32_t)i);
    announce(session, piece->exec, "one of many");
    CHECK(run_code(piece->exec) == (uint32_t)i);
    low = (uintptr_t)piece->exec < low ? (uintptr_t)piece->exec : low;
    high = (uintptr_t)piece->exec > high ? (uintptr_t)piece->exec : high;
  }
  CHECK(high - low < (4 << 20));
  jitsym_stats stats = test_stats(session);
  CHECK(stats.region_generations >= 1 && stats.region_generations <= (uint64_t)rounds / 50);
  CHECK(stats.live == LIVE && stats.regions == 1);
  CHECK_OK(jitsym_close(session));
}

/* ------------------------------------------------------------------------------------------------ threads and processes */

static jitsym *shared;

/* Nobody else writes to what a thread has. */
static void *churn(void *number) {
  enum { LIVE = 20 };

  jitsym_region pieces[LIVE];
  uint32_t values[LIVE] = {0}, base = (uint32_t)(uintptr_t)number << 24;
  int rounds = test_light ? 1000 : 10000;
  memset(pieces, 0, sizeof pieces);
  for (uint32_t i = 0; i < (uint32_t)rounds; i++) {
    uint32_t place = i * 7 % LIVE;
    if (pieces[place].exec != NULL) {
      CHECK(run_code(pieces[place].exec) == values[place]);
      CHECK_OK(jitsym_free(shared, pieces[place].exec));
    }
    pieces[place] = alloc(shared, 64 + i % 900);
    values[place] = base + i;
    put_code(pieces[place].write, values[place]);
    announce(shared, pieces[place].exec, "of a thread");
  }
  for (uint32_t i = 0; i < LIVE; i++) {
    CHECK(run_code(pieces[i].exec) == values[i]);
    CHECK_OK(jitsym_free(shared, pieces[i].exec));
  }
  return NULL;
}

static void threads(void) {
  enum { THREADS = 4 };

  pthread_t running[THREADS];
  shared = open_regions();
  for (uintptr_t i = 0; i < THREADS; i++) {
    CHECK(pthread_create(&running[i], NULL, churn, (void *)(i + 1)) == 0);
  }
  for (int i = 0; i < THREADS; i++) {
    CHECK(pthread_join(running[i], NULL) == 0);
  }
  CHECK(test_stats(shared).live == 0);
  CHECK_OK(jitsym_close(shared));
}

static void forks(uint32_t flags) {
  jitsym *session = test_open_flags(JITSYM_SINK_REGION, flags);
  jitsym_region kept = alloc(session, 100), freed = alloc(session, 100);
  check_views(kept, 1);
  check_views(freed, 2);
  CHECK_OK(test_flush(session));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    jitsym_region own = alloc(session, 100);
    CHECK(own.exec != kept.exec && own.exec != freed.exec);
    check_views(own, 3);
    check_views(kept, 4);
    CHECK(is_of_file(own.exec, "/jit"));
    CHECK_OK(jitsym_free(session, freed.exec));
    check_freed(session, freed.exec);
    CHECK_OK(jitsym_free(session, own.exec));
    alloc(session, 1 << 20);
    CHECK_OK(jitsym_close(session));
    _exit(0);
  }
  test_wait_ok(child);
  CHECK(run_code(kept.exec) == 1 && run_code(freed.exec) == 2);
  CHECK_OK(jitsym_free(session, freed.exec));
  CHECK_OK(jitsym_free(session, kept.exec));
  CHECK_OK(jitsym_close(session));
}

static void forks_later(void) {
  forks(0);
}

static void forks_now(void) {
  forks(JITSYM_INIT_FORK_NOW);
}

static void *alloc_until(void *stop) {
  while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
    CHECK_OK(jitsym_free(shared, alloc(shared, 100).exec));
  }
  return NULL;
}

/* A child that is forked in the middle of others' calls finds everything whole: but not AddressSanitizer's own locks. */
static void forks_meanwhile(void) {
#if defined(__SANITIZE_ADDRESS__)
  return;
#endif
  enum { FORKS = 30, TOLD = 3 };

  pthread_t running;
  int stop = 0;
  shared = open_regions();
  jitsym_region kept = alloc(shared, 100);
  check_views(kept, 5);
  CHECK(pthread_create(&running, NULL, alloc_until, &stop) == 0);
  int whole = 0;
  for (int i = 0; i < FORKS || (whole == 0 && i < 100 * FORKS); i++) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      jitsym_region piece;
      memset(&piece, 0, sizeof piece);
      piece.struct_size = sizeof piece;
      jitsym_status status = jitsym_alloc(shared, 100, 0, 0, &piece);
      if (status == JITSYM_ERR_FORKED) {
        /* A fork does not wait for ever for a writer that gets no processor or disk. */
        _exit(TOLD);
      }
      CHECK_OK(status);
      check_views(piece, 6);
      CHECK(run_code(kept.exec) == 5);
      CHECK_OK(jitsym_free(shared, kept.exec));
      _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == TOLD);
    whole += WEXITSTATUS(status) == 0;
  }
  CHECK(whole > 0);
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  CHECK(pthread_join(running, NULL) == 0);
  CHECK_OK(jitsym_close(shared));
}

/* ------------------------------------------------------------------------------------------------ without files */

static void no_file(void) {
  jitsym *session = open_regions();
  jitsym_region piece = alloc(session, 100), large = alloc(session, 4 << 20);
  check_views(piece, 1);
  check_views(large, 2);
  CHECK(!is_of_file(piece.exec, "/jit"));
  CHECK(test_stats(session).region_refused > 0);
  CHECK_OK(jitsym_free(session, large.exec));
  CHECK_OK(jitsym_free(session, piece.exec));
  CHECK_OK(jitsym_close(session));
}

/* Takes all room that is left. */
static void fill_disk(const char *path) {
  static const char bytes[PAGE];
  FILE *file = fopen(path, "w");
  CHECK(file != NULL && setvbuf(file, NULL, _IONBF, 0) == 0);
  while (fwrite(bytes, sizeof bytes, 1, file) == 1) {
  }
  fclose(file);
}

/* More memory than there is room for: all of it can be written to, also if it was given back and others have taken the room. */
static void full(void) {
  enum { PIECES = 600, LENGTH = 10000 };

  static jitsym_region pieces[PIECES];
  jitsym *session = open_regions();
  for (int round = 0; round < 3; round++) {
    for (uint32_t i = 0; i < PIECES; i++) {
      pieces[i] = alloc(session, LENGTH);
      memset(pieces[i].write, 0x90, LENGTH);
      put_code(pieces[i].write, i);
    }
    for (uint32_t i = 0; i < PIECES; i++) {
      CHECK(run_code(pieces[i].exec) == i);
      CHECK_OK(jitsym_free(session, pieces[i].exec));
    }
    char path[TEST_PATH_MAX];
    snprintf(path, sizeof path, "%s/others", test_dir);
    fill_disk(path);
  }
  CHECK_OK(jitsym_close(session));
}

int main(int argc, char **argv) {
  static void (*const parts[])(void) = {
      refuses, gives_memory, ends_registrations, sessions_end, without_sink,
      reuses,  threads,      forks_later,        forks_now,    forks_meanwhile,
  };

  test_begin(argc, argv);
  if (argc >= 3) {
    test_child(strcmp(argv[2], "full") == 0 ? full : no_file);
    return test_end();
  }
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    test_child(parts[i]);
  }
  return test_end();
}
