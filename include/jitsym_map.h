/*
 * Writes the perf map for jitsym_dl.h if libjitsym is missing (docs/linking.md). A program calls no function of this file.
 * Each call opens the map by its path, checks it, appends one line by one write, and closes it. If a map is older than the
 * process, the first call replaces it. A newer map gets further lines: another copy of this header, or another runtime in this
 * process, wrote that map. The first call of a forked child copies the parent's lines.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_MAP_H
#define JITSYM_MAP_H

#include "jitsym.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* C libraries hide some names from plain ISO C. This file uses raw system calls, which are no cancellation points. */
#ifndef __cplusplus
extern long syscall(long, ...);
#endif
#ifdef __O_PATH
#define JITSYM_MAP_LOOK __O_PATH
#define JITSYM_MAP_SAFE (__O_NOFOLLOW | __O_CLOEXEC)
#else
#define JITSYM_MAP_LOOK O_PATH
#define JITSYM_MAP_SAFE (O_NOFOLLOW | O_CLOEXEC)
#endif
#ifdef st_mtime
#define JITSYM_MAP_NS st_mtim.tv_nsec
#else
#define JITSYM_MAP_NS st_mtimensec
#endif

/* The state, which all source files of a program share, like jitsym_dl_loaded. */
typedef struct jitsym_map_state {
  size_t sessions, registered, moved, errors; /* Open sessions, and counters for jitsym_stats. */
  size_t inode, end;                          /* The file's inode, and the end of the last line written here. */
  int pid, error;                             /* The last process that opened the map, and the last errno. */
  unsigned mode;
  char start[JITSYM_DIR_MAX + 8]; /* The path up to the pid. Never changes once a map was opened. */
} jitsym_map_state;

__attribute__((weak, visibility("hidden"))) jitsym_map_state jitsym_map;

#define JITSYM_MAP_ROOM (JITSYM_NAME_MAX + 64U) /* The size of a buffer for a line or a path. */
#define JITSYM_MAP_GET(field) __atomic_load_n(&jitsym_map.field, __ATOMIC_SEQ_CST)
#define JITSYM_MAP_SET(field, value) __atomic_store_n(&jitsym_map.field, (value), __ATOMIC_SEQ_CST)
#define JITSYM_MAP_ADD(field, number) ((void)__atomic_fetch_add(&jitsym_map.field, (number), __ATOMIC_SEQ_CST))

static inline uint32_t jitsym_map_hash(const char *text, size_t size) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (; size > 0; size--) hash = (hash ^ (unsigned char)*text++) * 0x100000001b3U;
  return (uint32_t)((hash ^ hash >> 32) & 0xffffffffU);
}

/* Decodes one character of UTF-8 to `out`, or U+FFFD if the bytes are not UTF-8. Returns the number of bytes read. */
static inline size_t jitsym_map_decode(const char *text, size_t size, uint32_t *out) {
  uint32_t c = (unsigned char)*text, low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, byte;
  uint32_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
  size_t more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3, at = 1;
  *out = more == 0 ? c : 0xfffd;
  if (more == 0 || c < 0xc2 || c > 0xf4) return 1;
  for (c &= 0x3fU >> more; at <= more; at++, low = 0x80, high = 0xbf) {
    byte = at < size ? (unsigned char)text[at] : 0;
    if (byte < low || byte > high) return at;
    c = c << 6 | (byte & 0x3f);
  }
  *out = c;
  return at;
}

/* Cleans and cuts a name as src/format/name.rs does. `to` has room for JITSYM_NAME_MAX + 1 bytes. Returns the new length. */
static inline size_t jitsym_map_clean(char *to, const char *text, size_t size) {
  size_t at, used = 0, end = 0, length;
  uint32_t c;
  for (at = 0; at < size && end <= JITSYM_NAME_MAX; at += length) {
    const char *from = text + at;
    size_t copied = length = jitsym_map_decode(from, size - at, &c);
    int is_line_end = c == 0x2028 || c == 0x2029;
    int is_space = (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
                   is_line_end || c == 0x202f || c == 0x205f || c == 0x3000;
    if (c < ' ' || (c >= 0x7f && c < 0xa0) || is_line_end) from = "_", copied = 1;
    if (c == 0xfffd) from = "\xef\xbf\xbd", copied = 3;
    if (is_space && used == 0) continue;
    /* After a character that does not fit into `to`, the rest is dropped. */
    if (used + copied <= JITSYM_NAME_MAX) memcpy(to + used, from, copied);
    used += used + copied <= JITSYM_NAME_MAX ? copied : JITSYM_NAME_MAX + 1;
    if (!is_space) end = used;
  }
  if (end <= JITSYM_NAME_MAX) return end;
  for (end = JITSYM_NAME_MAX - 9; ((unsigned char)to[end] & 0xc0) == 0x80;) end--;
  return end + (size_t)snprintf(to + end, 10, "~%08x", (unsigned)jitsym_map_hash(text, size));
}

/* Writes the name of code, with its file and line, to `to`. Returns the length. */
static inline size_t jitsym_map_name(char *to, const jitsym_code *code) {
  char text[2 * JITSYM_NAME_MAX + 32];
  size_t given = code->name == NULL ? 0 : code->name_len != 0 ? code->name_len : strlen(code->name);
  size_t size = jitsym_map_clean(text, code->name, given), file;
  if (size == 0) size = (size_t)snprintf(text, 32, "jit_%llx", (unsigned long long)code->addr);
  file = code->file == NULL ? 0 : jitsym_map_clean(text + size + 1, code->file, strlen(code->file));
  if (file != 0) text[size] = ' ', size += 1 + file;
  if (file != 0 && code->line != 0) size += (size_t)snprintf(text + size, 12, ":%u", (unsigned)code->line);
  size = jitsym_map_clean(to, text, size);
  return size < 3 ? size + (size_t)snprintf(to + size, 3, "()") : size;
}

/* Opens a file above descriptor 2: hosts that have closed 0 to 2 may still use these numbers. 1030 is F_DUPFD_CLOEXEC. */
static inline int jitsym_map_at(const char *path, int how) {
  int fd = (int)syscall(SYS_openat, -1, path, how | JITSYM_MAP_SAFE, JITSYM_MAP_GET(mode)), low = fd;
  if (low >= 0 && low < 3) fd = (int)syscall(SYS_fcntl, low, 1030, 3), syscall(SYS_close, low);
  return fd;
}

/* Opens a regular file of this user with one link. A child that has changed its user may read its parent's map. */
static inline int jitsym_map_open(char *path, int pid, int access, struct stat *file) {
  int fd, how = JITSYM_MAP_LOOK;
  snprintf(path, JITSYM_MAP_ROOM, "%s%d.map", jitsym_map.start, pid);
  for (;; how = access | O_APPEND | O_NONBLOCK) {
    fd = jitsym_map_at(path, how);
    if (fd < 0 || (fstat(fd, file) != 0 && syscall(SYS_close, fd) == 0)) return -1;
    if (!S_ISREG(file->st_mode) || file->st_nlink != 1) break;
    if (file->st_uid != geteuid() && (access != O_RDONLY || (size_t)file->st_ino != JITSYM_MAP_GET(inode))) break;
    if (how != JITSYM_MAP_LOOK) return fd;
    syscall(SYS_close, fd);
  }
  syscall(SYS_close, fd);
  errno = file->st_nlink == 0 ? ENOENT : EEXIST;
  return -1;
}

/* Whether a file is at most a clock tick older than the process. True if /proc gives no start time. */
static inline int jitsym_map_is_own(const struct stat *file) {
  char text[1024] = "", *at;
  long now[2] = {0, 0}, boot[2] = {0, 0}, tick = 1000 / sysconf(_SC_CLK_TCK);
  int fd = jitsym_map_at("/proc/self/stat", O_RDONLY | O_NONBLOCK), i;
  syscall(SYS_read, fd, text, sizeof text - 1), syscall(SYS_close, fd);
  for (at = strrchr(text, ')'), i = 0; at != NULL && i < 20; i++) at = strchr(at + 1, ' ');
  if (at == NULL || syscall(SYS_clock_gettime, 0, now) != 0 || syscall(SYS_clock_gettime, 7, boot) != 0) return 1;
  return file->st_mtime * 1000LL + (long)file->JITSYM_MAP_NS / 1000000 + (file->JITSYM_MAP_NS == 0 ? 2000 : tick) >=
         (now[0] - boot[0]) * 1000LL + (now[1] - boot[1]) / 1000000 + strtoll(at, NULL, 10) * tick;
}

/* In a forked child: copies the parent's lines up to the last line before the fork. Returns -1 on failure. */
static inline long jitsym_map_inherit(int fd, int parent) {
  char path[JITSYM_MAP_ROOM], block[8192];
  struct stat file;
  long at = 0, end = (long)JITSYM_MAP_GET(end), part = 1, line, done;
  int from = jitsym_map_open(path, parent, O_RDONLY, &file);
  if (from < 0 || (size_t)file.st_ino != JITSYM_MAP_GET(inode)) end = 0;
  for (; at < end && part > 0; at += part) {
    lseek(from, at, SEEK_SET);
    part = syscall(SYS_read, from, block, end - at < 8192 ? end - at : 8192L);
    for (line = part; line > 0 && block[line - 1] != '\n';) line--;
    if (line > 0) part = line; /* A line of another runtime may be longer than the block. */
    if (part > 0 && (done = syscall(SYS_write, fd, block, part)) != part) errno = done < 0 ? errno : ENOSPC, part = -1;
  }
  if (part < 0) syscall(SYS_ftruncate, fd, 0L); /* Readers would take a cut name for a whole name. */
  if (from >= 0) syscall(SYS_close, from);
  return part;
}

/* Opens the map of this process, which the first call makes. Returns the descriptor, or -1 and errno. */
static inline int jitsym_map_begin(struct stat *file) {
  char path[JITSYM_MAP_ROOM];
  const long nap[2] = {0, 100000};
  int self = (int)getpid(), begun = JITSYM_MAP_GET(pid), tries, is_new = 0, fd = -1;
  for (tries = 0; tries < 1010; tries++, syscall(SYS_nanosleep, nap, NULL)) {
    fd = jitsym_map_open(path, self, O_RDWR, file);
    if (fd >= 0 && begun == self) break;
    if (fd < 0 && errno == ENOENT) {
      fd = jitsym_map_at(path, O_RDWR | O_APPEND | O_CREAT | O_EXCL);
      if ((is_new = fd >= 0) == 0 && errno == EEXIST) continue;
    }
    if (fd < 0) return -1;
    /* The lock lets one thread make the file. If another program holds the lock, the call waits 0.1 s, once. */
    if ((tries >= 1000 || syscall(SYS_flock, fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) && fstat(fd, file) == 0) {
      if (file->st_nlink == 1 && (is_new || tries >= 1000 || jitsym_map_is_own(file))) break;
      if (file->st_nlink == 1 && syscall(SYS_unlinkat, -1, path, 0) != 0) tries = 1010;
    }
    syscall(SYS_close, fd), fd = -1;
  }
  if (fd >= 0 && begun != self && begun != 0 && file->st_size == 0 && jitsym_map_inherit(fd, begun) < 0)
    syscall(SYS_close, fd), fd = -1; /* The next call tries again. */
  if (fd < 0) return -1;
  if (begun != self || is_new) fstat(fd, file);
  if (begun != self || is_new || (size_t)file->st_ino != JITSYM_MAP_GET(inode)) JITSYM_MAP_SET(end, (size_t)file->st_size);
  JITSYM_MAP_SET(inode, (size_t)file->st_ino), JITSYM_MAP_SET(pid, self);
  if (begun != self || is_new) syscall(SYS_flock, fd, LOCK_UN); /* Otherwise a forked child would hold the lock. */
  return fd;
}

/* Appends a newline and a line. If `size` is 0, reads the bytes before `*end` instead. Returns the number of bytes, or -1. */
static inline long jitsym_map_use(char *text, size_t size, size_t *end) {
  /* All signals but faults are blocked, so that no handler forks or jumps out of the call. */
  const unsigned long faults = 1UL << (SIGSYS - 1) | 1UL << (SIGSEGV - 1) | 1UL << (SIGBUS - 1);
  unsigned long mask[2] = {~faults, ~0UL}, before[2] = {0, 0}, limit[2] = {1UL << (SIGXFSZ - 1), 0}, none[4] = {0, 0, 0, 0};
  int host_errno = errno, fd;
  struct stat file;
  char last = '\n';
  long done = -1;
  syscall(SYS_rt_sigprocmask, 0, mask, before, 8L); /* SIG_BLOCK */
  errno = 0;
  fd = jitsym_map_begin(&file);
  if (fd >= 0 && size == 0) {
    size = *end < JITSYM_MAP_ROOM ? *end : JITSYM_MAP_ROOM;
    if (lseek(fd, (off_t)(*end - size), SEEK_SET) >= 0) done = syscall(SYS_read, fd, text, size);
  } else if (fd >= 0) {
    /* If another writer has left a cut line, the newline ends it. */
    if (lseek(fd, -1, SEEK_END) >= 0) syscall(SYS_read, fd, &last, 1L);
    if (last == '\n') text++, size--;
    done = syscall(SYS_write, fd, text, size);
    *end = (size_t)lseek(fd, 0, SEEK_CUR);
    if (done >= 0 && done != (long)size) {
      if (fstat(fd, &file) == 0 && (size_t)file.st_size == *end) syscall(SYS_ftruncate, fd, (long)*end - done);
      errno = ENOSPC, done = -1; /* Readers would take a cut name for a whole name. */
    }
    for (size_t known = JITSYM_MAP_GET(end); done >= 0 && *end > known; known = JITSYM_MAP_GET(end))
      __sync_bool_compare_and_swap(&jitsym_map.end, known, *end);
  }
  if (fd >= 0 && syscall(SYS_close, fd) != 0) done = -1; /* Some file systems report errors only at close. */
  JITSYM_MAP_SET(error, done < 0 ? errno : 0), JITSYM_MAP_ADD(errors, done < 0);
  if (errno != 0) syscall(SYS_rt_sigtimedwait, limit, NULL, none, 8L); /* Discards SIGXFSZ of a write beyond RLIMIT_FSIZE. */
  syscall(SYS_rt_sigprocmask, 2, before, NULL, 8L); /* SIG_SETMASK */
  errno = host_errno;
  return done;
}

/* Writes a line of the map. The id is the file offset of the line's end, followed by 16 bits of the line's hash. */
static inline jitsym_status jitsym_map_line(uint64_t addr, uint64_t size, const char *name, size_t length, jitsym_id *out) {
  char text[JITSYM_MAP_ROOM + 32];
  size_t end = 0, used = (size_t)snprintf(text, 64, "\n%llx %llx ", (unsigned long long)addr, (unsigned long long)size);
  if (size == 0 || size > JITSYM_CODE_SIZE_MAX) return size == 0 ? JITSYM_ERR_SIZE_ZERO : JITSYM_ERR_TOO_LARGE;
  if (addr == 0 || addr + size < addr) return JITSYM_ERR_ADDRESS_RANGE;
  memcpy(text + used, name, length);
  text[used += length] = '\n';
  if (jitsym_map_use(text, used + 1, &end) < 0) return JITSYM_ERR_SINK_FAILED;
  if (out != NULL) *out = (jitsym_id)end << 16 | (jitsym_map_hash(text + 1, used) & 0xffff);
  return JITSYM_OK;
}

#endif /* JITSYM_MAP_H */
