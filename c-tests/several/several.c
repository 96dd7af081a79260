/*
 * Several runtimes in one process: copies of the library, loaded in every way that there is, and writers of the same files that
 * behave as other runtimes do. What it is to do is said by its arguments, in their order:
 *
 *   load PATH     loads a copy of the shared library, with symbols of its own, and opens a session
 *   apart PATH    the same in a namespace of its own (dlmopen)
 *   plugin PATH   loads a plugin with the static library inside, and opens a session
 *   idle PATH     loads a plugin and unloads it with nothing called: it has to be gone then
 *   foreign KIND  begins to write as another runtime does (see `begin` below)
 *   line          ends the line that `foreign map-half!` has begun
 *   session       opens another session of the copy that was loaded last
 *   close         closes the session that was opened last
 *   unload        unloads the copy that was loaded last
 *   more          every writer announces one function more, but for those that are in the way only (!)
 *   replace N     the copy that was loaded last announces another function in the place of the one with this number
 *   flush         every session flushes
 *   say           prints the status of the copy that was loaded last
 *   burn SECONDS  every function runs for so much processor time
 *   fork          goes on in a forked child; the parent waits for its end, and says nothing
 *   exit          ends at once, with sessions open
 *   kill          kills the process with what is on its way
 *
 * Prints what ran where and when, for a test to hold against what perf says. x86-64 only.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "jitsym_control.h"
#include "pace.h"
#include "plugin.h"
#include "testing.h"

/* check.h names statuses by a function of the library, which is not linked here. */
#define OK(call) CHECK((call) == JITSYM_OK)

enum { SPAN = 1 << 16, PLACE = 256, SIZE = 18, CODES = 200, WRITERS = 16 };

struct code {
  uint64_t from;
  char name[64];
};

struct writer {
  char name[32];
  const char *kind;
  int announced;
  /* Copies of the library. */
  struct plugin lib;
  void *handle;
  jitsym *session;
  /* Others. */
  FILE *file;
  int fd;
  uint64_t index;
};

static unsigned char *memory;
static struct code codes[CODES];
static int code_count;
static struct writer writers[WRITERS];
static int writer_count;

static unsigned char *place(int number) {
  return memory + PLACE * number;
}

static struct writer *last_copy(void) {
  struct writer *last = NULL;
  for (int i = 0; i < writer_count; i++) {
    last = writers[i].kind == NULL ? &writers[i] : last;
  }
  CHECK(last != NULL);
  return last;
}

static struct writer *new_writer(const char *kind, const char *name) {
  CHECK(writer_count < WRITERS);
  struct writer *writer = &writers[writer_count++];
  memset(writer, 0, sizeof *writer);
  writer->kind = kind;
  snprintf(writer->name, sizeof writer->name, "%s_%d", name, writer_count);
  return writer;
}

/* ------------------------------------------------------------------------------------------------ copies of the library */

static void open_session(struct writer *writer) {
  jitsym_status status = writer->lib.jitsym_init(NULL, &writer->session);
  if (status != JITSYM_OK) {
    char text[2048] = "";
    writer->lib.jitsym_last_error(NULL, text, sizeof text);
    fprintf(stderr, "%s: %d: %s\n", writer->name, (int)status, text);
  }
  CHECK(status == JITSYM_OK);
}

static void load(const char *how, const char *path) {
  struct writer *writer = new_writer(NULL, how);
  int apart = strcmp(how, "apart") == 0;
  writer->handle = apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (writer->handle == NULL) {
    fprintf(stderr, "%s\n", dlerror());
  }
  CHECK(writer->handle != NULL);
  if (strcmp(how, "plugin") == 0) {
    CHECK(dlsym(writer->handle, "jitsym_init") == NULL);
    const struct plugin *functions = dlsym(writer->handle, "plugin_functions");
    CHECK(functions != NULL);
    writer->lib = *functions;
  } else {
    void *symbol;
    /* By way of memcpy, because ISO C does not convert between object and function pointers. */
#define RESOLVE(function)                       \
  symbol = dlsym(writer->handle, #function);    \
  CHECK(symbol != NULL);                        \
  memcpy(&writer->lib.function, &symbol, sizeof symbol);
    PLUGIN_FUNCTIONS(RESOLVE)
  }
  for (struct writer *other = writers; other < writer; other++) {
    CHECK(other->lib.jitsym_init != writer->lib.jitsym_init);
  }
  open_session(writer);
}

static void load_idle(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != NULL && dlclose(handle) == 0);
  CHECK(dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL);
}

static void say_files(struct writer *writer) {
  jitsym_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.struct_size = sizeof stats;
  char map[1100] = "-", dump[1100] = "-", error[2048] = "";
  OK(writer->lib.jitsym_get_stats(writer->session, &stats));
  writer->lib.jitsym_path(writer->session, JITSYM_SINK_MAP, map, sizeof map);
  writer->lib.jitsym_path(writer->session, JITSYM_SINK_JITDUMP, dump, sizeof dump);
  writer->lib.jitsym_last_error(writer->session, error, sizeof error);
  printf("copy\t%s\t%u\t%u\t%s\t%s\t%s\n", writer->name, stats.sinks_running, stats.sinks_failed, map, dump, error);
}

/* ------------------------------------------------------------------------------------------------ other runtimes */

struct dump_header {
  uint32_t magic, version, total_size, elf_mach, pad, pid;
  uint64_t timestamp, flags;
};

struct load_record {
  uint32_t id, total_size;
  uint64_t timestamp;
  uint32_t pid, tid;
  uint64_t vma, addr, size, index;
};

static void flush_all(void) {
  for (int i = 0; i < writer_count; i++) {
    if (writers[i].session != NULL) {
      writers[i].lib.jitsym_flush(writers[i].session, 60000);
    }
  }
}

static void *flushes(void *nothing) {
  flush_all();
  return nothing;
}

/* As `fopen(path, "w+")` in a thread that loses its processor after the kernel has cut the file, and before it has a descriptor. Says
 * so if that took longer than the library is to wait for it. */
static FILE *open_slowly(const char *path) {
  enum { SLOWLY_MS = 30, PATIENCE_NS = 100000000 };
  char same[64];
  int by_name = open(path, O_PATH | O_CLOEXEC);
  CHECK(by_name >= 0);
  snprintf(same, sizeof same, "/proc/self/fd/%d", by_name);
  uint64_t start = test_now();
  CHECK(truncate(same, 0) == 0);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, flushes, NULL) == 0);
  test_sleep_ms(SLOWLY_MS);
  FILE *file = fopen(same, "r+");
  CHECK(file != NULL && close(by_name) == 0);
  if (test_now() - start > PATIENCE_NS) {
    puts("too slowly");
  }
  CHECK(pthread_join(thread, NULL) == 0);
  return file;
}

/* As if the file were nobody else's. */
static FILE *open_as_new(const char *kind, const char *path) {
  return strstr(kind, "-slow") != NULL ? open_slowly(path) : fopen(path, "w+");
}

static void begin(const char *kind) {
  struct writer *writer = new_writer(kind, kind);
  char map[64], dump[64];
  snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
  snprintf(dump, sizeof dump, "/tmp/jit-%d.dump", (int)getpid());
  struct dump_header header = {0x4a695444, 1, sizeof header, 62, 0, (uint32_t)getpid(), test_now(), 0};
  if (strcmp(kind, "map-append") == 0) {
    /* CPython -X perf */
    int fd = open(map, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && (writer->file = fdopen(fd, "a")) != NULL);
  } else if (strcmp(kind, "map-own") == 0 || strcmp(kind, "map-slow") == 0) {
    /* V8 --perf-basic-prof, wasmtime's perfmap */
    CHECK((writer->file = open_as_new(kind, map)) != NULL);
    setvbuf(writer->file, NULL, _IOLBF, 0);
  } else if (strcmp(kind, "map-half!") == 0) {
    /* With a buffer, of which the end of a line may wait for the next. */
    CHECK((writer->file = fopen(map, "w")) != NULL);
    CHECK(fputs("1000 10 half", writer->file) >= 0 && fflush(writer->file) == 0);
  } else if (strcmp(kind, "map-each") == 0) {
    /* Ruby's YJIT: open, append, close for each line. */
  } else if (strcmp(kind, "dump-own") == 0 || strcmp(kind, "dump-slow") == 0) {
    /* CPython -X perf_jit: with a buffer. */
    CHECK((writer->file = open_as_new(kind, dump)) != NULL);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(writer->file), 0) != MAP_FAILED);
    CHECK(fwrite(&header, sizeof header, 1, writer->file) == 1);
  } else if (strcmp(kind, "dump-all!") == 0) {
    /* Somebody who has every name that there is. */
    for (int zeros = 0; zeros < 10; zeros++) {
      snprintf(dump, sizeof dump, "/tmp/jit-%.*s%d.dump", zeros, "000000000", (int)getpid());
      CHECK((writer->fd = open(dump, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) >= 0);
    }
  } else if (strcmp(kind, "dump-append") == 0) {
    /* wasmtime: appends to whatever is there. */
    CHECK((writer->fd = open(dump, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) >= 0);
    CHECK(mmap(NULL, 1024, PROT_READ | PROT_EXEC, MAP_PRIVATE, writer->fd, 0) != MAP_FAILED);
    struct stat status;
    CHECK(fstat(writer->fd, &status) == 0);
    CHECK(status.st_size > 0 || write(writer->fd, &header, sizeof header) == sizeof header);
  } else {
    CHECK(!"a kind of writer");
  }
}

static void announce_in_map(struct writer *writer, uint64_t addr, const char *name) {
  FILE *file = writer->file;
  if (file == NULL) {
    char map[64];
    snprintf(map, sizeof map, "/tmp/perf-%d.map", (int)getpid());
    CHECK((file = fopen(map, "a")) != NULL);
  }
  CHECK(fprintf(file, "%llx %x %s\n", (unsigned long long)addr, SIZE, name) > 0 && fflush(file) == 0);
  if (writer->file == NULL) {
    CHECK(fclose(file) == 0);
  }
}

static void announce_in_dump(struct writer *writer, uint64_t addr, const char *name) {
  unsigned char bytes[512];
  size_t name_size = strlen(name) + 1;
  struct load_record record = {0, (uint32_t)(sizeof record + name_size + SIZE), test_now(), (uint32_t)getpid(),
                               (uint32_t)syscall(SYS_gettid), addr, addr, SIZE, writer->index++};
  memcpy(bytes, &record, sizeof record);
  memcpy(bytes + sizeof record, name, name_size);
  memcpy(bytes + sizeof record + name_size, (const void *)(uintptr_t)addr, SIZE);
  if (writer->file != NULL) {
    CHECK(fwrite(bytes, record.total_size, 1, writer->file) == 1);
  } else {
    CHECK(write(writer->fd, bytes, record.total_size) == (ssize_t)record.total_size);
  }
}

/* ------------------------------------------------------------------------------------------------ code */

/* push rbp; mov rbp, rsp; mov ecx, 20000; 1: dec ecx; jnz 1b; nop; pop rbp; ret */
static void announce_at(struct writer *writer, int number) {
  static const unsigned char bytes[SIZE] = {0x55, 0x48, 0x89, 0xe5, 0xb9, 0x20, 0x4e, 0,    0,
                                            0xff, 0xc9, 0x75, 0xfc, 0x90, 0x5d, 0xc3, 0xcc, 0xcc};
  struct code *code = &codes[number];
  unsigned char *at = place(number);
  memcpy(at, bytes, SIZE);
  uint64_t addr = (uint64_t)(uintptr_t)at;
  snprintf(code->name, sizeof code->name, "%.31s_code_%d", writer->name, writer->announced++);
  if (writer->kind == NULL) {
    jitsym_code described = test_code(addr, SIZE, code->name);
    described.bytes = at;
    OK(writer->lib.jitsym_register(writer->session, &described, NULL));
  } else if (strncmp(writer->kind, "map", 3) == 0) {
    announce_in_map(writer, addr, code->name);
  } else {
    announce_in_dump(writer, addr, code->name);
  }
  code->from = test_now();
}

static void announce(struct writer *writer) {
  CHECK(code_count < CODES);
  announce_at(writer, code_count++);
}

static uint64_t time_spent(void) {
  struct timespec time;
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void burn(double seconds) {
  for (int i = 0; i < code_count; i++) {
    uint64_t end = time_spent() + (uint64_t)(seconds * 1e9);
    while (time_spent() < end) {
      ((void (*)(void))(uintptr_t)place(i))();
    }
  }
}

static void say_all(void) {
  for (int i = 0; i < code_count; i++) {
    printf("life %d %llx %d %llu %llu %s\n", (int)getpid(), (unsigned long long)(uintptr_t)place(i), SIZE,
           (unsigned long long)codes[i].from, (unsigned long long)test_now(), codes[i].name);
  }
  for (int i = 0; i < writer_count; i++) {
    if (writers[i].session != NULL) {
      say_files(&writers[i]);
    }
  }
  puts("end");
  fflush(stdout);
}

int main(int argc, char **argv) {
  memory = mmap(NULL, SPAN, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  printf("pid %d\n", (int)getpid());
  fflush(stdout);
  for (int at = 1; at < argc; at++) {
    const char *action = argv[at];
    if (strcmp(action, "idle") == 0) {
      load_idle(argv[++at]);
    } else if (strcmp(action, "load") == 0 || strcmp(action, "apart") == 0 || strcmp(action, "plugin") == 0) {
      load(action, argv[++at]);
    } else if (strcmp(action, "foreign") == 0) {
      begin(argv[++at]);
    } else if (strcmp(action, "session") == 0) {
      struct writer *last = last_copy(), *writer = new_writer(NULL, "session");
      writer->lib = last->lib;
      open_session(writer);
    } else if (strcmp(action, "close") == 0) {
      OK(last_copy()->lib.jitsym_close(last_copy()->session));
      last_copy()->session = NULL;
    } else if (strcmp(action, "unload") == 0) {
      struct writer *gone = last_copy();
      CHECK(dlclose(gone->handle) == 0);
      *gone = writers[--writer_count];
    } else if (strcmp(action, "more") == 0) {
      for (int i = 0; i < writer_count; i++) {
        if (writers[i].kind != NULL ? strchr(writers[i].kind, '!') == NULL : writers[i].session != NULL) {
          announce(&writers[i]);
        }
      }
    } else if (strcmp(action, "flush") == 0) {
      flush_all();
    } else if (strcmp(action, "replace") == 0) {
      announce_at(last_copy(), atoi(argv[++at]));
    } else if (strcmp(action, "line") == 0) {
      CHECK(fputs("\n", writers[0].file) >= 0 && fflush(writers[0].file) == 0);
    } else if (strcmp(action, "say") == 0) {
      say_files(last_copy());
    } else if (strcmp(action, "burn") == 0) {
      burn(atof(argv[++at]) * test_pace());
    } else if (strcmp(action, "fork") == 0) {
      fflush(stdout);
      pid_t child = fork();
      CHECK(child >= 0);
      if (child > 0) {
        test_wait_ok(child);
        return 0;
      }
      printf("pid %d\n", (int)getpid());
    } else if (strcmp(action, "exit") == 0) {
      say_all();
      return 0;
    } else if (strcmp(action, "last") == 0) {
      say_all();
      fflush(stdout);
      /* The process ends with its last thread, or by this: the library's threads take no signal that can be blocked. */
      pid_t process = getpid();
      if (fork() == 0) {
        for (int file = 0; file < 3; file++) {
          close(file);
        }
        for (int i = 0; i < 600 && kill(process, 0) == 0; i++) {
          test_sleep_ms(100);
        }
        kill(process, SIGKILL);
        _exit(0);
      }
      pthread_exit(NULL);
    } else if (strcmp(action, "kill") == 0) {
      say_all();
      kill(getpid(), SIGKILL);
    } else {
      CHECK(!"an action");
    }
  }
  say_all();
  for (int i = 0; i < writer_count; i++) {
    if (writers[i].session != NULL) {
      OK(writers[i].lib.jitsym_close(writers[i].session));
    }
  }
  return 0;
}
