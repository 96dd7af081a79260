/*
 * A writer of jitdump files that knows nothing of the library, for programs whose jitdumps are like those of other runtimes.
 * x86-64.
 */
#ifndef JITDUMP_WRITE_H
#define JITDUMP_WRITE_H

#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CODE_SIZE = 64, PAGE = 4096 };

static FILE *dump;
static uint64_t indices;

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void check(int is_so, const char *what) {
  if (!is_so) {
    perror(what);
    exit(1);
  }
}

static unsigned char *memory(void *at, size_t size, int prot) {
  void *memory = mmap(at, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  check(memory != MAP_FAILED, "mmap");
  return memory;
}

/* Counts %rdi down to 0. */
static unsigned char *put(unsigned char *code) {
  static const unsigned char count_down[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3};
  memset(code, 0x90, CODE_SIZE);
  memcpy(code, count_down, sizeof count_down);
  return code;
}

static void dump_path(char path[PAGE], const char *dir) {
  snprintf(path, PAGE, "%s/jit-%d.dump", dir, (int)getpid());
}

static void begin_dump(const char *dir) {
  struct { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; } header =
    {0x4A695444, 1, 40, EM_X86_64, 0, (uint32_t)getpid(), now(), 0};
  char path[PAGE];
  dump_path(path, dir);
  dump = fopen(path, "w+");
  check(dump != NULL, path);
  fwrite(&header, sizeof header, 1, dump);
  check(fflush(dump) == 0, path);
  check(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) != MAP_FAILED, "marker");
}

/* Puts code there and describes it. `pid`, `tid`: the process and the thread that the record names. */
static unsigned char *load_as(uint32_t pid, uint32_t tid, unsigned char *code, const char *name) {
  struct { uint32_t id, size; uint64_t time; uint32_t pid, tid; uint64_t vma, address, length, index; } load =
    {0, (uint32_t)(sizeof load + strlen(name) + 1 + CODE_SIZE), now(), pid, tid,
     (uintptr_t)code, (uintptr_t)code, CODE_SIZE, ++indices};
  put(code);
  fwrite(&load, sizeof load, 1, dump);
  fwrite(name, strlen(name) + 1, 1, dump);
  fwrite(code, CODE_SIZE, 1, dump);
  check(fflush(dump) == 0, "jitdump");
  return code;
}

/* The source line of the code that the next record describes. */
static inline void source(unsigned char *code, const char *file, int32_t line) {
  struct { uint32_t id, size; uint64_t time, address, count, first; int32_t line, discriminator; } debug =
    {2, (uint32_t)(sizeof debug + strlen(file) + 1), now(), (uintptr_t)code, 1, (uintptr_t)code, line, 0};
  fwrite(&debug, sizeof debug, 1, dump);
  fwrite(file, strlen(file) + 1, 1, dump);
}

static unsigned char *load(unsigned char *code, const char *name) {
  return load_as((uint32_t)getpid(), (uint32_t)getpid(), code, name);
}

#endif
