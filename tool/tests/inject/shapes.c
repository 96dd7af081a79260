/* A program that writes a jitdump itself, and runs code that has a name in it, code that only a perf map names, and code of a
 * library that takes the place of dead code.
 * shapes DIR KIND [LIBRARY | FILES]: for each function that has run, prints `ran PID NAME ADDRESS CODE_SIZE FROM TO`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "jitdump_write.h"

/* Names code in the perf map. */
static unsigned char *in_map(unsigned char *code, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "a");
    check(map != NULL, path);
    fprintf(map, "%lx %x %s\n", (unsigned long)(uintptr_t)code, CODE_SIZE, name);
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
    run(first, "first_of_dump", CODE_SIZE);
    run(between, "between_in_map", CODE_SIZE);
    run(last, "last_of_dump", CODE_SIZE);
    run(before, "before_in_map", CODE_SIZE);
    run(behind, "behind_in_map", CODE_SIZE);
    check(mprotect(page, 3 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0, "mprotect");
    run(in_map(page + PAGE + 0x100, "later_in_map"), "later_in_map", CODE_SIZE);
    run(first, "first_of_dump", CODE_SIZE);
    /* In the place of code that only the map had. */
    run(load(between, "new_in_dump"), "new_in_dump", CODE_SIZE);
    run(before, "before_in_map", CODE_SIZE);
}

/* A child goes on with the jitdump of its parent, where the parent has other code. */
static void child(const char *kind)
{
    unsigned char *page = memory(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    uint32_t parent = (uint32_t)getpid();
    unsigned char *common = load(page, "common");
    run(common, "common", CODE_SIZE);
    int is_dead = strcmp(kind, "orphan") == 0;
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child > 0 && is_dead)
        _exit(0);
    if (child > 0) {
        run(load(page + 0x200, "of_the_parent"), "of_the_parent", CODE_SIZE);
        check(waitpid(child, NULL, 0) == child, "waitpid");
        run(common, "common", CODE_SIZE);
        return;
    }
    while (is_dead && (uint32_t)getppid() == parent)
        usleep(1000);
    uint32_t own = (uint32_t)getpid(), pid = strcmp(kind, "child") == 0 ? own : parent;
    run(load_as(pid, is_dead ? parent : own, page + 0x200, "of_the_child"), "of_the_child", CODE_SIZE);
    run(common, "common", CODE_SIZE);
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
    run(first, "first_of_dump", CODE_SIZE);
    run(dead, "dead_code", CODE_SIZE);
    void *text = mmap(page + PAGE, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, (off_t)segment->p_offset);
    check(text != MAP_FAILED, "mmap");
    run(page + PAGE, "in_library", 16);
    run(last, "last_of_dump", CODE_SIZE);
    run(load(page + 0x200, "new_beside"), "new_beside", CODE_SIZE);
    run(load(first, "new_first"), "new_first", CODE_SIZE);
    run(page + PAGE, "in_library", 16);
    memory(page + PAGE, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    run(load(page + PAGE, "new_code"), "new_code", CODE_SIZE);
    run(last, "last_of_dump", CODE_SIZE);
}

/* A function for each name of a source file. */
static void sources(char *const *files)
{
    unsigned char *page = memory(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
    for (; *files; files++, page += 2 * CODE_SIZE) {
        source(page, *files, 1);
        run(load(page, "with_source"), "with_source", CODE_SIZE);
    }
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
    else if (strcmp(kind, "sources") == 0)
        sources(argv + 3);
    else
        child(kind);
    return 0;
}
