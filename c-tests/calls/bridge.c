/* The bridge that a program asks for: what is told to debuggers goes where its session writes, and nowhere while that is off. */
#define _GNU_SOURCE
#include <elf.h>
#include <pthread.h>

#include "gdb_list.h"
#include "jitsym_control.h"
#include "testing.h"

enum { MAP = JITSYM_SINK_MAP, DUMP = JITSYM_SINK_JITDUMP };
enum { BRIDGE = JITSYM_INIT_BRIDGE, OFF = JITSYM_INIT_BRIDGE | JITSYM_INIT_OFF_BY_DEFAULT };
enum { SIZE = 64, OBJECTS = 4 };

/* Hidden, as those of LLVM: no other function takes the place of this one, so the list is looked at now and then. Weak, because the
 * library with sanitizers is in the program, and has them too. */
__attribute__((weak, visibility("hidden"))) struct gdb_descriptor __jit_debug_descriptor = {1, 0, NULL, NULL};
__attribute__((weak, noinline, visibility("hidden"))) void __jit_debug_register_code(void) {
  __asm__ volatile("" ::: "memory");
}

static struct object {
  Elf64_Ehdr header;
  Elf64_Shdr sections[4];
  Elf64_Sym symbols[2];
  char strings[32];
} objects[OBJECTS];
static struct gdb_entry entries[OBJECTS];

static uint64_t place(int number) {
  return (uint64_t)(uintptr_t)(test_bytes + number * SIZE);
}

static void tell(uint32_t action, struct gdb_entry *entry) {
  __jit_debug_descriptor.action = action;
  __jit_debug_descriptor.relevant = entry;
  __jit_debug_register_code();
}

/* Puts an object into the list: with a function, or without if `name` is NULL. */
static void add(int number, const char *name) {
  struct object *object = &objects[number];
  memset(object, 0, sizeof *object);
  memcpy(object->header.e_ident, ELFMAG, SELFMAG);
  object->header.e_ident[EI_CLASS] = ELFCLASS64;
  object->header.e_ident[EI_DATA] = ELFDATA2LSB;
  object->header.e_type = ET_REL;
#ifdef __aarch64__
  object->header.e_machine = EM_AARCH64;
#else
  object->header.e_machine = EM_X86_64;
#endif
  object->header.e_shoff = offsetof(struct object, sections);
  object->header.e_shnum = 4;
  Elf64_Shdr *text = &object->sections[1], *symbols = &object->sections[2], *strings = &object->sections[3];
  text->sh_type = SHT_NOBITS;
  text->sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  text->sh_addr = place(number);
  text->sh_size = SIZE;
  symbols->sh_type = SHT_SYMTAB;
  symbols->sh_offset = offsetof(struct object, symbols);
  symbols->sh_size = name ? sizeof object->symbols : 0;
  symbols->sh_link = 3;
  strings->sh_type = SHT_STRTAB;
  strings->sh_offset = offsetof(struct object, strings);
  strings->sh_size = sizeof object->strings;
  object->symbols[1].st_name = 1;
  object->symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
  object->symbols[1].st_shndx = 1;
  object->symbols[1].st_size = SIZE;
  if (name) snprintf(object->strings + 1, sizeof object->strings - 1, "%s", name);
  struct gdb_entry *entry = &entries[number];
  *entry = (struct gdb_entry){__jit_debug_descriptor.first, NULL, object, sizeof *object};
  if (entry->next) entry->next->previous = entry;
  __jit_debug_descriptor.first = entry;
  tell(1, entry);
}

static void take(int number) {
  struct gdb_entry *entry = &entries[number];
  *(entry->previous ? &entry->previous->next : &__jit_debug_descriptor.first) = entry->next;
  if (entry->next) entry->next->previous = entry->previous;
  tell(2, entry);
}

/* Gives the bridge the time to see what it is not to act on. */
static void let_it_look(void) {
  test_sleep_ms(test_slow ? 2000 : 100);
}

/* Waits until so many functions have been registered in the process, and so many have ended. */
static void await(jitsym *session, uint64_t registered, uint64_t unregistered) {
  jitsym_stats stats;
  TEST_AWAIT((stats = test_stats_now(session), stats.registered >= registered && stats.unregistered >= unregistered));
  CHECK(stats.registered == registered && stats.unregistered == unregistered);
  CHECK_OK(test_flush(session));
}

static void check_map(const char *path, int number, const char *name) {
  struct map map = map_read(path);
  CHECK(strcmp(map_name(&map, place(number)), name) == 0);
  map_free(&map);
}

static void check_dump(const char *path, const char *name) {
  struct dump dump = dump_read(path);
  CHECK(dump_load(&dump, name, 0) != NULL);
  dump_free(&dump);
}

/* Off at first, on, off and on again: names come with the sinks, and none while there are none. */
static void check_off(void) {
  jitsym *session = test_open_flags(0, OFF);
  struct test_path map = test_path_of(getpid(), MAP), dump = test_path_of(getpid(), DUMP);
  add(0, "before");
  let_it_look();
  CHECK(!file_exists(map.text) && !file_exists(dump.text));
  CHECK_OK(jitsym_enable(session, MAP));
  await(session, 1, 0);
  check_map(map.text, 0, "before");
  add(1, "meanwhile");
  await(session, 2, 0);
  CHECK(!file_exists(dump.text));
  take(0);
  await(session, 2, 1);

  CHECK_OK(jitsym_disable(session, 0));
  add(2, "while_off");
  let_it_look();
  check_map(map.text, 2, "");
  CHECK_OK(jitsym_enable(session, MAP | DUMP));
  await(session, 4, 1);
  check_map(map.text, 1, "meanwhile");
  check_map(map.text, 2, "while_off");
  check_dump(dump.text, "meanwhile");
  check_dump(dump.text, "while_off");

  /* Nobody looks in between. */
  CHECK_OK(jitsym_disable(session, 0));
  CHECK_OK(jitsym_enable(session, MAP));
  await(session, 6, 1);
  CHECK_OK(jitsym_close(session));
}

/* The first object does not start what the program has stopped. */
static void check_stopped(void) {
  jitsym *session = test_open_flags(MAP, BRIDGE);
  CHECK_OK(jitsym_disable(session, 0));
  add(0, "stopped");
  let_it_look();
  CHECK(jitsym_wanted(session) == 0);
  CHECK_OK(jitsym_enable(session, 0));
  await(session, 1, 0);
  check_map(test_path(session, MAP).text, 0, "stopped");
  CHECK_OK(jitsym_close(session));
}

/* An object that comes while there is no session is known to a later one. */
static void check_between(void) {
  CHECK_OK(jitsym_close(test_open_flags(0, OFF)));
  add(0, "between");
  let_it_look();
  CHECK(!file_exists(test_path_of(getpid(), MAP).text));
  jitsym *session = test_open_flags(MAP, 0);
  await(session, 1, 0);
  check_map(test_path(session, MAP).text, 0, "between");
  CHECK_OK(jitsym_close(session));
}

/* Opens a session with one sink, in a directory. `path`: where that writes. */
static jitsym *open_in(const struct test_path *dir, uint32_t sink, uint32_t flags, struct test_path *path) {
  jitsym_options options = test_options();
  options.map_dir = options.jitdump_dir = dir->text;
  options.sinks = sink;
  options.flags = flags;
  jitsym *session = NULL;
  CHECK_OK(jitsym_init(&options, &session));
  CHECK_OK(jitsym_path(session, sink, path->text, sizeof path->text));
  return session;
}

/* In the session's directory, and by its sinks alone; also once that session is closed. */
static void check_options(void) {
  const uint32_t flags = BRIDGE | JITSYM_INIT_REMOVE_FILES;
  struct test_path dir = test_subdir("own", 1), dump;
  CHECK_OK(jitsym_close(open_in(&dir, DUMP, flags, &dump)));
  CHECK(test_files_in(dir.text) == 0);
  add(0, NULL);
  let_it_look();
  take(0);
  let_it_look();
  CHECK(test_files_in(dir.text) == 0);

  add(1, "in_own_directory");
  TEST_AWAIT(file_exists(dump.text));
  jitsym *session = open_in(&dir, DUMP, flags, &dump);
  await(session, 1, 0);
  check_dump(dump.text, "in_own_directory");
  CHECK(test_files_in(dir.text) == 1);
  CHECK_OK(jitsym_close(session));
}

/* The program's session writes elsewhere than the bridge would: then the bridge writes there. */
static void check_elsewhere(void) {
  struct test_path dir = test_subdir("elsewhere", 1), map;
  jitsym *session = open_in(&dir, MAP, test_options().flags, &map);
  add(0, "elsewhere");
  await(session, 1, 0);
  check_map(map.text, 0, "elsewhere");
  CHECK_OK(jitsym_close(session));
}

static void check_after_another(void) {
  CHECK_OK(jitsym_close(test_open_flags(MAP, BRIDGE)));
  check_elsewhere();
}

static void check_by_variable(void) {
  CHECK(setenv("JITSYM", "map,bridge", 1) == 0);
  check_elsewhere();
}

static void last_thread_ends(jitsym *session) {
  add(0, "last");
  await(session, 1, 0);
  CHECK_OK(jitsym_disable(session, 0));
  pthread_exit(NULL);
}

/* The program's last thread ends when nothing is written any more: the bridge's thread does not keep the process. */
static void check_end(void) {
  last_thread_ends(test_open_flags(MAP, BRIDGE));
}

/* Nor in a child that has taken nothing over. */
static void check_end_of_child(void) {
  jitsym *session = test_open_flags(MAP, BRIDGE);
  add(0, "inherited");
  await(session, 1, 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    pthread_exit(NULL);
  }
  CHECK(test_wait_for(child, TEST_SCENARIO_TURNS) == 0);
  CHECK_OK(jitsym_close(session));
}

/* The bridge is for good, so each needs a process. */
static void in_child(void (*check)(void)) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    check();
    exit(0);
  }
  CHECK(test_wait_for(child, TEST_SCENARIO_TURNS) == 0);
}

int main(int argc, char **argv) {
  test_begin(argc, argv);
  in_child(check_off);
  in_child(check_stopped);
  in_child(check_between);
  in_child(check_options);
  in_child(check_after_another);
  in_child(check_by_variable);
  in_child(check_end);
  if (!test_light) {
    /* Checkers for leaks find in a child what threads of the parent have had. */
    in_child(check_end_of_child);
  }
  return test_end();
}
