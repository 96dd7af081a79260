/*
 * Memory for code, and code that is put there, moved and removed: the library and the truth are told of it together.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "guest_eh.h"
#include "jitsym_region.h"
#include "matrix.h"

static uint8_t *mapped(size_t size, int protection, int flags, int file) {
  void *memory = mmap(NULL, size, protection, flags, file, 0);
  if (memory == MAP_FAILED) {
    fail("mmap");
  }
  return memory;
}

/* The addresses are the guest's until the end, because nothing else may come to lie where samples were taken. */
struct region plain_region(enum region_kind kind, size_t size) {
  struct region region;
  int writable = PROT_READ | PROT_WRITE, file;

  region.size = size;
  region.created = 0;
  if (kind == REGION_MEMFD) {
    file = memfd_create("code", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size) != 0) {
      fail("memfd_create");
    }
    region.write = mapped(size, writable, MAP_SHARED, file);
    region.run = mapped(size, PROT_READ | PROT_EXEC, MAP_SHARED, file);
    close(file);
  } else {
    region.run = mapped(size, writable | (kind == REGION_RWX ? PROT_EXEC : 0), MAP_PRIVATE | MAP_ANONYMOUS, -1);
    region.write = region.run;
  }
  return region;
}

struct region create_region(size_t size, size_t max_size, uint32_t flags) {
  jitsym_region_options options;
  jitsym_region created;
  struct region region;

  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.size = size;
  options.max_size = max_size;
  options.flags = flags;
  memset(&created, 0, sizeof created);
  created.struct_size = sizeof created;
  check(jitsym_region_create(session, &options, &created), "jitsym_region_create");
  if (created.size < size) {
    fail("the region is smaller than was asked for");
  }
  region.run = created.exec;
  region.write = created.write;
  region.size = size;
  region.created = 1;
  return region;
}

void adopt_region(const struct region *region) {
  check(jitsym_region_adopt(session, region->run, region->size), "jitsym_region_adopt");
}

struct region new_region(enum region_kind kind, size_t size) {
  if (option.memory == CREATED_REGIONS) {
    return create_region(size, 0, kind == REGION_W_XOR_X ? JITSYM_REGION_ONE_VIEW : 0);
  }
  /* Whole pages, as the library adopts them. */
  struct region region = plain_region(kind, (size + 4095) / 4096 * 4096);
  if (option.memory == ADOPTED_REGIONS) {
    if (kind == REGION_W_XOR_X) {
      protect(&region, 0);
    }
    adopt_region(&region);
  } else if (option.memory == RESERVED_REGIONS) {
    if (kind != REGION_RWX || mprotect(region.run, region.size, PROT_NONE) != 0) {
      fail("this scenario reserves nothing");
    }
    adopt_region(&region);
    if (mprotect(region.run, region.size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) {
      fail("mprotect");
    }
  }
  return region;
}

void map_anew(const struct region *region) {
  if (region->created) {
    check(jitsym_region_discard(session, region->run, region->size), "jitsym_region_discard");
    return;
  }
  /* In one step: between two, another thread of the process could be given the addresses. */
  if (mmap(region->run, region->size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
      region->run) {
    fail("cannot map memory anew");
  }
  if (option.memory != PLAIN_MEMORY) {
    adopt_region(region);
  }
}

void protect(const struct region *region, int writable) {
  if (mprotect(region->run, region->size, PROT_READ | (writable ? PROT_WRITE : PROT_EXEC)) != 0) {
    fail("mprotect");
  }
}

size_t gap_behind(enum gap gap) {
  return gap == NO_GAP || option.sinks == JITSYM_SINK_REGION ? 0 : GAP_SIZE;
}

void write_bytes(struct code *code, struct function *function, const void *bytes, size_t size, const char *name,
                 const struct region *region, size_t offset) {
  memset(code, 0, sizeof *code);
  code->function = function;
  code->kind = KINDS;
  code->name = name;
  code->size = size;
  if (offset + size > region->size) {
    fail("region too small");
  }
  code->addr = (uint64_t)(uintptr_t)(region->run + offset);
  code->bytes = region->write + offset;
  memcpy(code->bytes, bytes, size);
}

void write_code(struct code *code, struct function *function, enum kind kind, const char *name,
                const struct region *region, size_t offset) {
  write_bytes(code, function, function->code.data, function->code.size, name, region, offset);
  code->kind = kind;
}

/* FNV-1a folded to 32 bits, which is what the library puts behind a name that it has cut. */
static uint32_t hash(const char *name) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (; *name; name++) {
    hash = (hash ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
  }
  return (uint32_t)(hash ^ hash >> 32);
}

/* What a name becomes in the files of the library. The caller frees it. */
static char *name_as_written(const char *name) {
  size_t size = strlen(name);
  char *written = malloc(size + 1);
  if (!written) {
    fail("out of memory");
  }
  memcpy(written, name, size + 1);
  if (size > JITSYM_NAME_MAX) {
    size_t cut = JITSYM_NAME_MAX - 9;
    /* Not in the middle of a character. */
    while (((uint8_t)written[cut] & 0xc0) == 0x80) {
      cut--;
    }
    snprintf(written + cut, 10, "~%08" PRIx32, hash(name));
  }
  return written;
}

static void tell_lines(const struct code *code) {
  for (uint32_t i = 0; i < code->function->line_count; i++) {
    truth_line(code->number, &code->function->lines[i]);
  }
}

/* What is saved in a frame with a frame pointer is described as saved until the epilogue, also where it was popped before. */
static void tell_popped(const struct code *code) {
  const struct function *f = code->function;
  if (f->unwind.kind != JITSYM_UNWIND_FRAME_POINTER) {
    return;
  }
  for (uint32_t i = 0; i < f->code.frame_count; i++) {
    const struct frame_row *row = &f->code.frames[i];
    uint32_t end = i + 1 < f->code.frame_count ? row[1].offset : f->code.size;
    if (row->offset <= f->unwind.saved_from || row->offset >= f->unwind.epilogue_begin) {
      continue;
    }
    for (uint32_t n = 0; n < f->unwind.saved_count; n++) {
      if (row->frame.saved[f->unwind.saved[n].reg].at == 0) {
        truth_popped(code->number, row->offset, end);
      }
    }
  }
}

void announce(struct code *code) {
  struct function *f = code->function;
  jitsym_code registered;

  memset(&registered, 0, sizeof registered);
  registered.struct_size = sizeof registered;
  registered.addr = code->addr;
  registered.size = code->size;
  registered.name = code->name;
  registered.bytes = code->handing_over == BY_ADDRESS ? NULL : code->bytes;
  registered.flags = code->handing_over == STABLE ? JITSYM_CODE_STABLE : 0;
  if (f->eh_style != EH_NONE) {
    describe_eh(f, code->addr);
  }
  registered.unwind = &f->unwind;
  registered.lines = f->lines;
  registered.line_count = f->line_count;
  registered.inlines = f->inlines;
  registered.inline_count = f->inline_count;
  registered.flags = option.code_flags;

  char *name = name_as_written(code->name);
  code->number = truth_code(code->addr, code->size, now(), name);
  free(name);
  check(jitsym_register(session, &registered, &code->id), "jitsym_register");
  tell_lines(code);
  tell_popped(code);
}

size_t put_code(struct code *code, enum kind kind, unsigned salt, const char *name, const struct region *region,
                size_t offset, enum gap gap) {
  struct function *function = compile(kind, salt, name, NULL);
  write_code(code, function, kind, name, region, offset);
  announce(code);
  return offset + function->code.size + gap_behind(gap);
}

void move_code(struct code *code, const struct region *region, size_t offset) {
  jitsym_move_target target;

  if (offset + code->size > region->size) {
    fail("region too small");
  }
  truth_code_ends(code->number, now());
  memmove(region->write + offset, code->bytes, code->size);
  code->addr = (uint64_t)(uintptr_t)(region->run + offset);
  code->bytes = region->write + offset;

  memset(&target, 0, sizeof target);
  target.struct_size = sizeof target;
  target.addr = code->addr;
  target.bytes = code->bytes;
  target.flags = option.code_flags;
  char *name = name_as_written(code->name);
  code->number = truth_code(code->addr, code->size, now(), name);
  free(name);
  check(jitsym_move(session, code->id, &target), "jitsym_move");
  tell_lines(code);
  tell_popped(code);
}

void remove_code(struct code *code) {
  truth_code_ends(code->number, now());
  check(jitsym_unregister(session, code->id), "jitsym_unregister");
}

void remove_all(struct code *codes, unsigned count, const struct region *region) {
  uint64_t to = now();
  for (unsigned i = 0; i < count; i++) {
    truth_code_ends(codes[i].number, to);
  }
  check(jitsym_unregister_range(session, (uint64_t)(uintptr_t)region->run, region->size, 0), "jitsym_unregister_range");
}

const char *name_of(const char *prefix, unsigned number) {
  size_t size = strlen(prefix) + 12;
  char *name = malloc(size);
  if (!name) {
    fail("out of memory");
  }
  snprintf(name, size, "%s_%u", prefix, number);
  return name;
}
