/* Two ways through functions that burn in turn for so many seconds, when the bridge has registered them. usage: hot SECONDS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CALLED __attribute__((noinline, optnone))

CALLED uint64_t first_leaf(uint64_t n) {
    uint64_t a = 1;
    for (uint64_t i = 0; i < n; i++) a = a * 6364136223846793005u + i;
    return a;
}

CALLED uint64_t first_outer(uint64_t n) { return first_leaf(n) + 1; }

CALLED uint64_t second_leaf(uint64_t n) {
    uint64_t a = 1;
    for (uint64_t i = 0; i < n; i++) a = (a * 6364136223846793005u) ^ i;
    return a;
}

CALLED uint64_t second_outer(uint64_t n) { return second_leaf(n) + 1; }

/* Whether the perf map has this name. */
static int is_named(const char *name) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    FILE *map = fopen(path, "r");
    int found = 0;
    while (map != NULL && !found && fgets(line, sizeof line, map) != NULL) found = strstr(line, name) != NULL;
    if (map != NULL) fclose(map);
    return found;
}

int main(int argc, char **argv) {
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    for (int looks = 0; !is_named("second_outer"); looks++) {
        if (looks == 6000) return 1;
        usleep(10000);
    }
    time_t end = time(NULL) + atoi(argv[argc - 1]);
    uint64_t sum = 0;
    while (time(NULL) < end) sum += first_outer(2000000) + second_outer(2000000);
    return sum == 42;
}
