/* A program that writes a jitdump itself, and runs code that has a name in it, code that only a perf map names, and code of a
 * library that takes the place of dead code.
 * shapes DIR KIND [LIBRARY]: for each function that has run, prints `ran PID NAME ADDRESS SIZE FROM TO`. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64, PAGE = 4096 };

static FILE *dump;
static uint64_t indices;

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void check(int is_so, const char *what)
{
    if (!is_so) {
        perror(what);
        exit(1);
    }
}

static unsigned char *memory(void *at, size_t size, int prot)
{
    void *memory = mmap(at, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

/* Counts %rdi down to 0. */
static unsigned char *put(unsigned char *code)
{
    static const unsigned char count_down[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3};
    memset(code, 0x90, SIZE);
    memcpy(code, count_down, sizeof count_down);
    return code;
}

static void begin_dump(const char *dir)
{
    struct { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; } header =
        {0x4A695444, 1, 40, EM_X86_64, 0, (uint32_t)getpid(), now(), 0};
    char path[4096];
    snprintf(path, sizeof path, "%s/jit-%d.dump", dir, (int)getpid());
    dump = fopen(path, "w+");
    check(dump != NULL, path);
    fwrite(&header, sizeof header, 1, dump);
    check(fflush(dump) == 0, path);
    check(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) != MAP_FAILED, "marker");
}

/* Describes code. `pid`, `tid`: the process and the thread that the record names. */
static unsigned char *load_as(uint32_t pid, uint32_t tid, unsigned char *code, const char *name)
{
    struct { uint32_t id, size; uint64_t time; uint32_t pid, tid; uint64_t vma, address, length, index; } load =
        {0, (uint32_t)(sizeof load + strlen(name) + 1 + SIZE), now(), pid, tid,
         (uintptr_t)code, (uintptr_t)code, SIZE, ++indices};
    put(code);
    fwrite(&load, sizeof load, 1, dump);
    fwrite(name, strlen(name) + 1, 1, dump);
    fwrite(code, SIZE, 1, dump);
    check(fflush(dump) == 0, "jitdump");
    return code;
}

static unsigned char *load(unsigned char *code, const char *name)
{
    return load_as((uint32_t)getpid(), (uint32_t)getpid(), code, name);
}

/* Names code in the perf map. */
static unsigned char *in_map(unsigned char *code, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "a");
    check(map != NULL, path);
    fprintf(map, "%lx %x %s\n", (unsigned long)(uintptr_t)code, SIZE, name);
    check(fclose(map) == 0, path);
    return put(code);
}

/* Runs code until there are samples of it. */
static void run(unsigned char *code, const char *name, size_t size)
{
    void (*function)(long) = (void (*)(long))(uintptr_t)code;
    uint64_t from = now();
    clock_t end = clock() + CLOCKS_PER_SEC / 5;
    while (clock() < end)
        function(1000000);
    char line[300];
    int length = snprintf(line, sizeof line, "ran %d %s %lx %zu %llu %llu\n", (int)getpid(), name,
                          (unsigned long)(uintptr_t)code, size, (unsigned long long)from, (unsigned long long)now());
    check(write(1, line, (size_t)length) == length, "output");
}

/* Code of the map before, between and behind code of the jitdump, also in memory that becomes executable later. */
static void neighbours(void)
{
    unsigned char *page = memory(NULL, 3 * PAGE, PROT_READ | PROT_WRITE);
    check(mprotect(page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    unsigned char *first = load(page + 0x100, "first_of_dump"), *last = load(page + 0x800, "last_of_dump");
    unsigned char *before = in_map(page, "before_in_map"), *between = in_map(page + 0x400, "between_in_map");
    unsigned char *behind = in_map(page + 0xc00, "behind_in_map");
    run(first, "first_of_dump", SIZE);
    run(between, "between_in_map", SIZE);
    run(last, "last_of_dump", SIZE);
    run(before, "before_in_map", SIZE);
    run(behind, "behind_in_map", SIZE);
    check(mprotect(page, 3 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    run(in_map(page + PAGE + 0x100, "later_in_map"), "later_in_map", SIZE);
    run(first, "first_of_dump", SIZE);
    /* In the place of code that only the map had. */
    run(load(between, "new_in_dump"), "new_in_dump", SIZE);
    run(before, "before_in_map", SIZE);
}

/* A child goes on with the jitdump of its parent, where the parent has other code. */
static void child(const char *kind)
{
    unsigned char *page = memory(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    uint32_t parent = (uint32_t)getpid();
    unsigned char *common = load(page, "common");
    run(common, "common", SIZE);
    int is_dead = strcmp(kind, "orphan") == 0;
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child > 0 && is_dead)
        _exit(0);
    if (child > 0) {
        run(load(page + 0x200, "of_the_parent"), "of_the_parent", SIZE);
        check(waitpid(child, NULL, 0) == child, "waitpid");
        run(common, "common", SIZE);
        return;
    }
    while (is_dead && (uint32_t)getppid() == parent)
        usleep(1000);
    uint32_t own = (uint32_t)getpid(), pid = strcmp(kind, "child") == 0 ? own : parent;
    run(load_as(pid, is_dead ? parent : own, page + 0x200, "of_the_child"), "of_the_child", SIZE);
    run(common, "common", SIZE);
}

/* The text of a library takes the place of dead code, and new code the place of the library. */
static void library(const char *path)
{
    unsigned char *page = memory(NULL, 4 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    unsigned char *first = load(page, "first_of_dump"), *last = load(page + 3 * PAGE, "last_of_dump");
    int fd = open(path, O_RDONLY);
    check(fd >= 0, path);
    unsigned char header[PAGE];
    check(pread(fd, header, PAGE, 0) == PAGE, path);
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)header;
    const Elf64_Phdr *segment = (const Elf64_Phdr *)(header + elf->e_phoff);
    while (!(segment->p_type == PT_LOAD && segment->p_flags & PF_X))
        segment++;
    /* The function is at the start of the segment's section. */
    unsigned char *dead = load(page + PAGE, "dead_code");
    run(first, "first_of_dump", SIZE);
    run(dead, "dead_code", SIZE);
    void *text = mmap(page + PAGE, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, (off_t)segment->p_offset);
    check(text != MAP_FAILED, "mmap");
    run(page + PAGE, "in_library", 16);
    run(last, "last_of_dump", SIZE);
    run(load(page + 0x200, "new_beside"), "new_beside", SIZE);
    run(load(first, "new_first"), "new_first", SIZE);
    run(page + PAGE, "in_library", 16);
    memory(page + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    run(load(page + PAGE, "new_code"), "new_code", SIZE);
    run(last, "last_of_dump", SIZE);
}

int main(int argc, char **argv)
{
    check(argc >= 3, "usage");
    const char *kind = argv[2];
    begin_dump(argv[1]);
    if (strcmp(kind, "neighbours") == 0)
        neighbours();
    else if (strcmp(kind, "library") == 0)
        library(argv[3]);
    else
        child(kind);
    return 0;
}
