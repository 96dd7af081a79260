/*
 * Two runtimes tell a collector of methods at random, with the same numbers, and this program keeps the truth: what lives at the end.
 * A forked child then tells of one more method, and so makes files with exactly that code.
 *
 * usage: collector SEED RUNTIME.so RUNTIME.so [METHODS]
 * With a number of methods it tells of these, and ends.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

enum { SLOTS = 200, SLOT = 256, IDS = 60, STEPS = 4000 };

static uint64_t state;

static unsigned below(unsigned bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % bound;
}

/* Code in a slot; no two overlap. `rows`: how many of the table's lines it has, or INLINED if a function covers all of it. */
enum { INLINED = 9, MANY = 1000 };
static struct {
    int runtime;
    unsigned id, size, rows;
    char name[32];
} slots[SLOTS];

static unsigned (*notify[2])(unsigned, void *);
static unsigned char *arena;
static unsigned serial;

/* What the first event of a method has called it. */
static char first[2][IDS + 1][32];

static int lives(int runtime, unsigned id) {
    for (int slot = 0; slot < SLOTS; slot++)
        if (slots[slot].id == id && slots[slot].runtime == runtime) return slot;
    return -1;
}

static void load(int runtime, unsigned id, int slot) {
    static struct row ends[] = {{4, 11}, {9, 12}, {20, 13}};
    int known = lives(runtime, id), bare = known >= 0 && below(2) == 0;
    char name[32], file[] = "/src/guest.toy";
    snprintf(name, sizeof name, "r%d_m%u_%u", runtime, id, serial++);
    unsigned size = 1 + below(SLOT);
    unsigned char *at = arena + slot * SLOT;
    for (unsigned i = 0; i < size; i++) at[i] = (unsigned char)below(256);
    /* A further part of a method may come without a name. */
    char *given = bare ? NULL : name;
    unsigned rows = below(4);
    unsigned answer;
    if (below(2)) {
        struct method_load data = {id, given, at, size, rows, rows ? ends : NULL, 0, NULL, bare ? NULL : file};
        answer = notify[runtime](LOAD, &data);
    } else {
        struct method_load_v2 data = {id, given, at, size, rows, rows ? ends : NULL, "class", bare ? NULL : file, "module", 0};
        answer = notify[runtime](below(2) ? LOAD_V2 : LOAD_V3, &data);
    }
    CHECK(answer == 1);
    strcpy(slots[slot].name, bare ? first[runtime][id] : name);
    slots[slot].id = 0;
    if (lives(runtime, id) < 0) strcpy(first[runtime][id], slots[slot].name);
    slots[slot].runtime = runtime;
    slots[slot].id = id;
    slots[slot].size = size;
    slots[slot].rows = rows;
}

/* A method with so many functions that were inlined: each is one byte, and has its own line. The last event is of the last of them. */
static void inline_many(unsigned char *at) {
    char file[] = "/src/many.toy";
    struct row row = {0, 1};
    struct method_load_v2 method = {500, "with_many_inlined", at, MANY, 1, &row, NULL, file, NULL, 0};
    memset(at, 0x90, MANY);
    CHECK(notify[0](LOAD_V2, &method) == 1);
    for (unsigned i = 0; i < MANY; i++) {
        row.line = 100 + i;
        struct method_inline_load data = {501 + i, 500, "one_of_many", at + i, 1, 1, &row, NULL, file};
        CHECK(notify[0](INLINE_LOAD, &data) == 1);
    }
}

/* Methods that live to the end. */
static void load_many(unsigned count) {
    unsigned char *code = calloc(count, 1);
    CHECK(code);
    for (unsigned i = 0; i < count; i++) {
        struct method_load data = {1 + i, "one_of_many", code + i, 1, 0, NULL, 0, NULL, NULL};
        CHECK(notify[0](LOAD, &data) == 1);
    }
    CHECK(notify[0](SHUTDOWN, NULL) == 1);
    free(code);
    printf("%u methods\n", count);
}

int main(int argc, char **argv) {
    CHECK(argc == 4 || argc == 5);
    state = strtoull(argv[1], NULL, 0) * 2 + 1;
    for (int runtime = 0; runtime < 2; runtime++) {
        void *library = dlopen(argv[2 + runtime], RTLD_NOW | RTLD_LOCAL);
        CHECK(library);
        unsigned (*start)(void) = (unsigned (*)(void))dlsym(library, "runtime_start");
        notify[runtime] = (unsigned (*)(unsigned, void *))dlsym(library, "runtime_notify");
        unsigned answer = start();
        if (answer == 0) return puts("off") < 0;
        CHECK(answer == 1);
    }
    if (argc == 5) return load_many((unsigned)atoi(argv[4])), 0;
    arena = mmap(NULL, SLOTS * SLOT + MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED);
    for (int step = 0; step < STEPS; step++) {
        int runtime = (int)below(2), slot = (int)below(SLOTS);
        unsigned id = 1 + below(IDS);
        switch (below(8)) {
        case 0: {
            /* Nothing after the number can be read. */
            size_t page = (size_t)sysconf(_SC_PAGESIZE);
            static unsigned char *end;
            if (!end) {
                unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
                end = pages + page - sizeof id;
            }
            memcpy(end, &id, sizeof id);
            CHECK(notify[runtime](UNLOAD, end) == (lives(runtime, id) >= 0));
            for (int ended; (ended = lives(runtime, id)) >= 0;) slots[ended].id = 0;
            break;
        }
        case 1: {
            unsigned char *at = arena + slot * SLOT;
            unsigned size = slots[slot].id ? slots[slot].size : 1;
            for (unsigned i = 0; i < size; i++) at[i] = (unsigned char)below(256);
            struct method_update update = {at, size, 1, ""};
            struct method_load again = {id, NULL, at, size, 0, NULL, 0, NULL, NULL};
            unsigned answer = below(2) ? notify[runtime](UPDATE_V2, &update) : notify[runtime](UPDATE, &again);
            CHECK(answer == (slots[slot].id != 0));
            break;
        }
        case 2: {
            unsigned size = slots[slot].id ? slots[slot].size : 1;
            char file[] = "/src/inlined.toy";
            struct row row = {0, 77};
            struct method_inline_load data = {1000 + id, slots[slot].id ? slots[slot].id : 1, "inlined", arena + slot * SLOT, size, 1,
                                              &row, NULL, file};
            CHECK(notify[runtime](INLINE_LOAD, &data) == (slots[slot].id != 0));
            if (slots[slot].id) slots[slot].rows = INLINED;
            break;
        }
        default: load(runtime, id, slot);
        }
    }
    /* What is wrong has no effect. */
    struct method_load bad = {0, "bad", arena, 16, 0, NULL, 0, NULL, NULL};
    CHECK(notify[0](LOAD, &bad) == 0);
    bad = (struct method_load){999, NULL, arena, 16, 0, NULL, 0, NULL, NULL};
    CHECK(notify[0](LOAD, &bad) == 0);
    bad = (struct method_load){999, "bad", arena, 0, 0, NULL, 0, NULL, NULL};
    CHECK(notify[0](LOAD, &bad) == 0);
    bad = (struct method_load){999, "bad", NULL, 16, 0, NULL, 0, NULL, NULL};
    CHECK(notify[0](LOAD, &bad) == 0);
    CHECK(notify[0](LOAD, NULL) == 0 && notify[0](12345, arena) == 0);

    inline_many(arena + SLOTS * SLOT);
    CHECK(notify[0](SHUTDOWN, NULL) == 1);
    for (int slot = 0; slot < SLOTS; slot++) {
        if (slots[slot].id == 0) continue;
        unsigned char *at = arena + slot * SLOT;
        printf("%lx %x %s %u ", (unsigned long)at, slots[slot].size, slots[slot].name, slots[slot].rows);
        for (unsigned i = 0; i < slots[slot].size; i++) printf("%02x", at[i]);
        puts("");
    }
    printf("parent %d\n", (int)getpid());
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct method_load one = {777, "of_the_child", arena, slots[0].id ? slots[0].size : 16, 0, NULL, 0, NULL, NULL};
        CHECK(notify[0](LOAD, &one) == 1);
        CHECK(notify[1](SHUTDOWN, NULL) == 1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("child %d\n", (int)child);
    return 0;
}
