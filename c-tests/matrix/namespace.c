/*
 * Namespaces of its own for the process, as a container has them.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "matrix.h"

enum { DIRS_MAX = 8, NOT_ALLOWED = 77 };

/* Directories in /tmp that the process has mapped files from: itself, perhaps, and the library. */
static struct {
  char path[PATH_MAX];
  int file;
} dirs[DIRS_MAX];
static unsigned dir_count;

static void remember_dir(const char *path) {
  for (unsigned i = 0; i < dir_count; i++) {
    if (strcmp(dirs[i].path, path) == 0) {
      return;
    }
  }
  if (dir_count == DIRS_MAX) {
    fail("too many directories");
  }
  strcpy(dirs[dir_count].path, path);
  dirs[dir_count].file = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dirs[dir_count++].file < 0) {
    fail("cannot open a directory of the program");
  }
}

static void remember_dirs(void) {
  char line[PATH_MAX + 128];
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) {
    fail("cannot read /proc/self/maps");
  }
  while (fgets(line, sizeof line, maps)) {
    char *path = strstr(line, " /tmp/");
    char *slash = path ? strrchr(path, '/') : NULL;
    if (slash && slash > path + 5) {
      *slash = 0;
      remember_dir(path + 1);
    }
  }
  fclose(maps);
}

static void make_dirs(const char *path) {
  char prefix[PATH_MAX];
  for (const char *at = path + 1;; at++) {
    if (*at == '/' || *at == 0) {
      snprintf(prefix, sizeof prefix, "%.*s", (int)(at - path), path);
      if (mkdir(prefix, 0755) != 0 && errno != EEXIST) {
        fail("mkdir");
      }
    }
    if (*at == 0) {
      return;
    }
  }
}

/* A /tmp that nobody else sees, but with the program in its place, so that a profiler that looks there finds it. */
static void make_own_tmp(void) {
  char from[64];
  remember_dirs();
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 || mount("tmpfs", "/tmp", "tmpfs", 0, "mode=1777") != 0) {
    fail("mount");
  }
  for (unsigned i = 0; i < dir_count; i++) {
    snprintf(from, sizeof from, "/proc/self/fd/%d", dirs[i].file);
    make_dirs(dirs[i].path);
    if (mount(from, dirs[i].path, NULL, MS_BIND, NULL) != 0) {
      fail("cannot bind a directory of the program");
    }
    close(dirs[i].file);
  }
  if (option.dir) {
    make_dirs(option.dir);
  }
}

static void write_line(const char *path, const char *line) {
  FILE *file = fopen(path, "we");
  if (!file || fputs(line, file) < 0 || fclose(file) != 0) {
    fail("cannot make a user namespace");
  }
}

/* Who is not root may have namespaces within one where he is. */
static int unshare_as_user(void) {
  char map[64];
  unsigned uid = (unsigned)getuid(), gid = (unsigned)getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0) {
    return -1;
  }
  write_line("/proc/self/setgroups", "deny");
  snprintf(map, sizeof map, "0 %u 1", uid);
  write_line("/proc/self/uid_map", map);
  snprintf(map, sizeof map, "0 %u 1", gid);
  write_line("/proc/self/gid_map", map);
  return 0;
}

void enter_namespace(void) {
  int status;
  if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 && unshare_as_user() != 0) {
    fprintf(stderr, "ground truth: namespaces are not allowed here\n");
    exit(NOT_ALLOWED);
  }
  pid_t child = fork();
  if (child < 0) {
    fail("fork");
  }
  if (child > 0) {
    if (waitpid(child, &status, 0) != child) {
      fail("waitpid");
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  make_own_tmp();
}
