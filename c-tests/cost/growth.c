/*
 * What calls cost for input of a size, and for input of another one: DIR MODE SIZE OBJECT... Callgrind counts the instructions of the
 * functions whose names begin with `measured`, and is asked for their sum after each. The program says how many bytes of memory the
 * thread has asked for meanwhile.
 *
 * MODE is "calls", or "objects" for a list of as many objects as SIZE says, and then for each OBJECT by itself, a file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <malloc.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <valgrind/callgrind.h>

#include "jitsym_region.h"
#include "../sources/runtime.h"
#include "gdb_list.h"
#include "testing.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static _Thread_local size_t asked_for;

void *malloc(size_t size) {
  asked_for += size;
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  asked_for += count * size;
  return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
  asked_for += size;
  return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
  asked_for += size;
  return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return *out == NULL ? ENOMEM : 0;
}

void *mmap(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
  asked_for += size;
  return (void *)syscall(SYS_mmap, addr, size, protection, flags, fd, offset);
}

void *mmap64(void *addr, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap(addr, size, protection, flags, fd, offset);
}

void *mremap(void *old, size_t old_size, size_t size, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  void *to = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
  va_end(rest);
  asked_for += size;
  return (void *)syscall(SYS_mremap, old, old_size, size, flags, to);
}

#define MEASURED __attribute__((noinline)) static void

static const uint64_t ADDR = 0x7000000000;
static jitsym *session;
static size_t size;

static void say(const char *what, size_t before) {
  printf("%s=%zu\n", what, asked_for - before);
  CALLGRIND_DUMP_STATS_AT(what);
}

/* A name in which nothing can stay as it is. */
static char *name;

MEASURED measured_name(void) {
  jitsym_code code = test_code(ADDR, 16, name);
  CHECK_OK(jitsym_register(session, &code, NULL));
}

/* A section with a CIE of a size, which has many FDEs. */
enum { FDES = 100, FDE = 28, CODE = 16 };
static unsigned char section[64 << 10];
static size_t section_size;

static void put(uint32_t word) {
  memcpy(section + section_size, &word, sizeof word);
  section_size += sizeof word;
}

static void make_section(size_t cie_size) {
  static const unsigned char start[] = {1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x00, 0x0c, 7, 8};
  memset(section, 0, sizeof section);
  section_size = 0;
  put((uint32_t)cie_size - 4);
  put(0);
  memcpy(section + section_size, start, sizeof start);
  /* DW_CFA_same_value of some register, again and again. */
  for (section_size += sizeof start; section_size < cie_size; section_size += 2) {
    memcpy(section + section_size, (unsigned char[]){0x08, 3}, 2);
  }
  for (uint64_t i = 0; i < FDES; i++) {
    uint64_t addr = ADDR + i * CODE;
    put(FDE - 4);
    put((uint32_t)section_size);
    memcpy(section + section_size, &addr, sizeof addr);
    section_size += sizeof addr;
    put(CODE);
    put(0);
    /* No augmentation data, and no instructions. */
    put(0);
  }
  put(0);
}

static jitsym_status register_section(void) {
  jitsym_unwind unwind;
  memset(&unwind, 0, sizeof unwind);
  unwind.struct_size = sizeof unwind;
  unwind.kind = JITSYM_UNWIND_EH_FRAME;
  unwind.eh_frame = section;
  unwind.eh_frame_size = section_size;
  jitsym_code code = test_code(ADDR, FDES * CODE, "with a ready section");
  code.unwind = &unwind;
  return jitsym_register(session, &code, NULL);
}

MEASURED measured_section(void) {
  CHECK_OK(register_section());
}

/* Functions that were inlined at places in one file, whose name is long. */
static jitsym_inline *inlined;

static void make_inlined(void) {
  inlined = calloc(size + 32, sizeof *inlined);
  CHECK(inlined);
  for (uint32_t i = 0; i < size + 32; i++) {
    inlined[i] = (jitsym_inline){.begin = i, .end = i + 1, .name = "one", .call_file = name, .call_line = 1, .parent = UINT32_MAX};
  }
}

MEASURED measured_files(void) {
  jitsym_code code = test_code(ADDR, TEST_CODE_MAX, "with many calls in one file");
  code.inlines = inlined;
  code.inline_count = size + 32;
  code.inline_size = sizeof *inlined;
  CHECK_STATUS(JITSYM_ERR_NO_MEMORY, jitsym_register(session, &code, NULL));
}

/* Functions that were inlined, each into the one before, told from the innermost one on. */
static unsigned (*notify)(unsigned, void *);

MEASURED measured_inlines(void) {
  static unsigned char code[1 << 16];
  char file[] = "/src/nested.toy", method_name[] = "with_nested", inline_name[] = "nested";
  struct row row = {0, 1};
  struct method_load_v2 method = {1, method_name, code, (unsigned)(2 * size + 2), 1, &row, NULL, file, NULL, 0};
  CHECK(notify(LOAD_V2, &method) == 1);
  for (unsigned depth = (unsigned)size; depth > 0; depth--) {
    unsigned char *at = code + depth;
    unsigned covered = (unsigned)(2 * (size - depth) + 2);
    struct method_inline_load data = {1 + depth, depth, inline_name, at, covered, 1, &row, NULL, file};
    CHECK(notify(INLINE_LOAD, &data) == 1);
  }
  CHECK(notify(UPDATE_V2, &(struct method_update){code, 1, 0, NULL}) == 1);
}

/* The library's. */
extern struct gdb_descriptor __jit_debug_descriptor;
extern void __jit_debug_register_code(void);

static void tell_again(struct gdb_entry *entry) {
  __jit_debug_descriptor.action = 1;
  __jit_debug_descriptor.relevant = entry;
  __jit_debug_register_code();
  __jit_debug_descriptor.action = 0;
}

static void tell(struct gdb_entry *entry) {
  entry->next = __jit_debug_descriptor.first;
  if (entry->next) {
    entry->next->previous = entry;
  }
  __jit_debug_descriptor.first = entry;
  tell_again(entry);
}

/* An object with one function, as small as one can be. */
struct object {
  Elf64_Ehdr header;
  Elf64_Shdr sections[4];
  Elf64_Sym symbols[2];
  char strings[16];
};

static const struct object one_function = {
    {{0x7f, 'E', 'L', 'F', 2, 1}, ET_REL, EM_X86_64, 1, 0, 0, offsetof(struct object, sections), 0, 0, 0, 0, 0, 4, 0},
    {{0},
     {0, SHT_NOBITS, SHF_ALLOC | SHF_EXECINSTR, 0, 0, CODE, 0, 0, 0, 0},
     {0, SHT_SYMTAB, 0, 0, offsetof(struct object, symbols), sizeof one_function.symbols, 3, 0, 0, 0},
     {0, SHT_STRTAB, 0, 0, offsetof(struct object, strings), sizeof one_function.strings, 0, 0, 0, 0}},
    {{0}, {1, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, 1, 0, CODE}},
    "\0function",
};

static struct gdb_entry *entries;
static struct object *objects;

static void make_objects(void) {
  entries = calloc(size, sizeof *entries);
  objects = calloc(size, sizeof *objects);
  CHECK(entries && objects);
  for (size_t i = 0; i < size; i++) {
    objects[i] = one_function;
    objects[i].sections[1].sh_addr = (uintptr_t)test_bytes + CODE * i;
    entries[i].object = &objects[i];
    entries[i].size = sizeof objects[i];
  }
}

MEASURED measured_list(void) {
  for (size_t i = 1; i < size; i++) {
    tell(&entries[i]);
  }
}

static struct gdb_entry object;

/* An object that ends where nothing can be read. What its entry says of its size is wrong. */
static void map_object(const char *path) {
  size_t length, page = (size_t)sysconf(_SC_PAGESIZE);
  unsigned char *bytes = file_read(path, &length);
  size_t pages = (length + page - 1) / page * page;
  unsigned char *mapped = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(mapped != MAP_FAILED && mprotect(mapped + pages, page, PROT_NONE) == 0);
  memcpy(mapped, bytes, length);
  free(bytes);
  object.object = mapped;
  object.size = 1 << 30;
}

MEASURED measured_object(void) {
  entries[0].next = NULL;
  __jit_debug_descriptor.first = &entries[0];
  tell(&object);
}

MEASURED measured_object_again(void) {
  tell_again(&object);
}

int main(int argc, char **argv) {
  CHECK(argc >= 4);
  test_begin(2, argv);
  size = strtoul(argv[3], NULL, 10);
  /* Nobody else is to tell debuggers of anything, and inlined functions are to be read. */
  int is_objects = strcmp(argv[2], "objects") == 0;
  setenv("JITSYM_GDB", is_objects ? "0" : "1", 1);
  session = test_open_flags(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP, is_objects ? JITSYM_INIT_BRIDGE : 0);
  size_t before;
  if (is_objects) {
    make_objects();
    /* Looks for the lists of all libraries. */
    tell(&entries[0]);
    before = asked_for;
    measured_list();
    say("list", before);
    CHECK_OK(test_flush(session));
    CHECK(test_stats(session).registered == size);
    for (int i = 4; i < argc; i++) {
      char what[32];
      snprintf(what, sizeof what, "object %d", i - 4);
      map_object(argv[i]);
      before = asked_for;
      measured_object();
      say(what, before);
      /* A change that is no change: whether anything was found or not is known. */
      snprintf(what, sizeof what, "again %d", i - 4);
      before = asked_for;
      measured_object_again();
      say(what, before);
    }
  } else {
    setenv("JITSYM_DIR", test_dir, 1);
    name = malloc(size << 12);
    CHECK(name);
    memset(name, 0xff, size << 12);
    name[(size << 12) - 1] = 0;
    before = asked_for;
    measured_name();
    say("name", before);

    make_inlined();
    before = asked_for;
    measured_files();
    say("files", before);

    make_section(2 * size);
    before = asked_for;
    measured_section();
    say("section", before);
    make_section(30000);
    before = asked_for;
    CHECK_STATUS(JITSYM_ERR_UNWIND_FORMAT, register_section());
    CHECK(asked_for - before < 4096);

    void *library = dlopen("libjitsym.so.0.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library);
    notify = (unsigned (*)(unsigned, void *))dlsym(library, "NotifyEvent");
    CHECK(notify && ((unsigned (*)(void))dlsym(library, "Initialize"))() == 1);
    before = asked_for;
    measured_inlines();
    say("inlines", before);
  }
  CHECK_OK(jitsym_close(session));
  return test_end();
}
