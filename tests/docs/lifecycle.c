/*
 * A runtime made of the fragments of docs/integration.md and docs/special-cases.md: does with them what their text says, and looks
 * at the counters.
 * Usage: lifecycle off | on. Prints "ok".
 */
#include <jitsym.h>
#include <jitsym_region.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fragments.c"

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);             \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

enum { SIZE = 4096, PART = 64 };

static int threads(void) {
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir != NULL);
    int count = 0;
    while (readdir(dir) != NULL) count++;
    closedir(dir);
    return count - 2; /* . and .. */
}

static jitsym_stats counters(void) {
    CHECK(jitsym_flush(session, 5000) == JITSYM_OK);
    jitsym_stats stats = { .struct_size = sizeof stats };
    CHECK(jitsym_get_stats(session, &stats) == JITSYM_OK);
    return stats;
}

static struct block part(unsigned char *run, unsigned char *write, int number, const char *name) {
    struct block block = { run + number * PART, write + number * PART, PART, name, 0 };
    return block;
}

static void off(struct block *block) {
    CHECK(jitsym_wanted(session) == 0 && threads() == 1);
    publish(block, NULL);
    CHECK(block->symbol == 0);
    jitsym_id id = 7;
    CHECK(jitsym_register(session, NULL, &id) == JITSYM_OK && id == 0);
    retire(block);
}

static void on(unsigned char *run, unsigned char *write) {
    CHECK(jitsym_wanted(session) != 0 && threads() == 3);

    /* The code cannot be read where it runs, so the bytes come from the other mapping. */
    struct block block = part(run, write, 0, "twice mapped");
    publish(&block, NULL);
    CHECK(block.symbol != 0 && counters().live == 1 && counters().unreadable == 0);
    jitsym_id first = block.symbol;
    moved(&block, run + 8 * PART, write + 8 * PART);
    CHECK(block.symbol == first && counters().moved == 1 && counters().live == 1);
    retire(&block);
    CHECK(block.symbol == 0 && counters().live == 0 && jitsym_unregister(session, first) == JITSYM_ERR_UNKNOWN_ID);
    struct block blind = part(run, run, 0, "bytes unknown");
    blind.write = NULL;
    publish(&blind, NULL);
    CHECK(blind.symbol != 0 && counters().unreadable == 1);
    retire(&blind);

    /* A cache is emptied: its code is gone, and what it only touches. */
    struct block in = part(run, write, 1, "in the cache"), across = part(run, write, 3, "across its end");
    struct block behind = part(run, write, 4, "behind it");
    publish(&in, NULL);
    publish(&across, NULL);
    publish(&behind, NULL);
    cache_flushed(run, 3 * PART + 1);
    CHECK(counters().live == 1 && jitsym_unregister(session, in.symbol) == JITSYM_ERR_UNKNOWN_ID);
    CHECK(jitsym_unregister(session, across.symbol) == JITSYM_ERR_UNKNOWN_ID);
    retire(&behind);

    /* Code registered again at its address, within a live region, or moved over live code retires that. */
    struct block old = part(run, write, 0, "before patching"), region = part(run, write, 2, "a region of stubs");
    publish(&old, NULL);
    struct block again = old;
    publish(&again, NULL);
    CHECK(again.symbol != old.symbol && counters().overwritten == 1 && counters().live == 1);
    region.size = 4 * PART;
    publish(&region, NULL);
    struct block within = part(run, write, 3, "a stub in it");
    publish(&within, NULL);
    CHECK(counters().overwritten == 2 && jitsym_unregister(session, region.symbol) == JITSYM_ERR_UNKNOWN_ID);
    moved(&again, within.run, within.write);
    CHECK(counters().overwritten == 3 && jitsym_unregister(session, within.symbol) == JITSYM_ERR_UNKNOWN_ID);
    retire(&again);

    /* Two tiers of one name. */
    struct block low = part(run, write, 0, "fib"), high = part(run, write, 1, "fib");
    publish(&low, NULL);
    publish(&high, NULL);
    CHECK(counters().live == 2);
    retire(&low);
    retire(&high);

    struct block lines = part(run, write, 0, "with lines");
    publish_with_lines(&lines, "/source.toy");
    CHECK(lines.symbol != 0);
    retire(&lines);
    publish_with_inlines(&lines, "/source.toy");
    CHECK(lines.symbol != 0);
    retire(&lines);

    /* A stub that leaves the stack pointer alone. */
    jitsym_unwind stub = { .struct_size = sizeof stub, .kind = JITSYM_UNWIND_FIXED_FRAME, .cfa_offset = 8 };
    struct block stubs = part(run, write, 32, "IC stubs");
    publish(&stubs, &stub);
    CHECK(stubs.symbol != 0 && counters().live == 1);
    retire(&stubs);

    jitsym_stats stats = counters();
    CHECK(stats.live == 0 && stats.dropped == 0 && stats.names_changed == 0);
}

int main(int argc, char **argv) {
    unsigned char *run = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char *write = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(argc == 2 && run != MAP_FAILED && write != MAP_FAILED);
    memset(write, 0x90, SIZE);

    struct block block = part(run, write, 0, "nobody");
    publish(&block, NULL); /* without a session */
    CHECK(block.symbol == 0);
    start();
    CHECK(session != NULL);
    if (strcmp(argv[1], "off") == 0)
        off(&block);
    else
        on(run, write);
    CHECK(jitsym_close(session) == JITSYM_OK);
    puts("ok");
    return 0;
}
