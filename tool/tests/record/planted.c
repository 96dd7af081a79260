/* A program that writes a jitdump with one piece of code, and then puts something else into its directory, as another user may.
 * planted DIR KIND [VICTIM]: prints its pid, and ends at the end of its standard input. */
#include <elf.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INDEX 5

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

int main(int argc, char **argv)
{
    check(argc >= 3, "usage");
    const char *dir = argv[1], *kind = argv[2], *victim = argc > 3 ? argv[3] : "";
    char dump[4096], object[4096];
    snprintf(dump, sizeof dump, "%s/jit-%d.dump", dir, (int)getpid());
    snprintf(object, sizeof object, "%s/jitted-%d-%d.so", dir, (int)getpid(), INDEX);

    unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(code != MAP_FAILED, "mmap");
    /* Counts %rdi down to 0. */
    static const unsigned char count_down[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3};
    memset(code, 0x90, 64);
    memcpy(code, count_down, sizeof count_down);
    struct { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; } header =
        {0x4A695444, 1, 40, EM_X86_64, 0, (uint32_t)getpid(), now(), 0};
    struct { uint32_t id, size; uint64_t time; uint32_t pid, tid; uint64_t vma, address, length, index; char name[8]; } load =
        {0, sizeof load + 64, now(), (uint32_t)getpid(), (uint32_t)getpid(), (uintptr_t)code, (uintptr_t)code, 64, INDEX, "planted"};
    FILE *file = fopen(dump, "w+");
    check(file != NULL, dump);
    fwrite(&header, sizeof header, 1, file);
    fwrite(&load, sizeof load, 1, file);
    fwrite(code, 64, 1, file);
    check(fflush(file) == 0, dump);
    check(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(file), 0) != MAP_FAILED, "marker");

    if (strcmp(kind, "links") == 0) {
        check(symlink(victim, object) == 0, object);
    } else if (strcmp(kind, "plain") != 0) {
        check(unlink(dump) == 0, dump);
        if (strcmp(kind, "fifo") == 0)
            check(mkfifo(dump, 0600) == 0, dump);
        else
            check(symlink(kind, dump) == 0, dump);
    }
    printf("%d\n", (int)getpid());
    fflush(stdout);
    /* Runs the code until there are samples of it, and then until nobody holds the other end. */
    void (*run)(long) = (void (*)(long))(uintptr_t)code;
    struct pollfd input = {0, POLLIN, 0};
    do {
        run(1000000);
    } while (clock() < CLOCKS_PER_SEC / 5 || poll(&input, 1, 0) == 0 || getchar() != EOF);
    return 0;
}
