/* A runtime that compiles, and writes when it did. Prints its process, and the spans as samply is to show them. */
#include <jitsym.h>
#include <time.h>

#include "fragments.c"

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv) {
    static unsigned char code[4096];
    jitsym *session;
    if (argc != 2 || jitsym_init(NULL, &session) != JITSYM_OK) return 1;
    begin_spans(argv[1]);
    printf("%d\n", (int)getpid());
    for (int i = 0; i < 3; i++) {
        char name[40];
        uint64_t begin = now(), end;
        /* It compiles. */
        while ((end = now()) - begin < 30000000) continue;
        snprintf(name, sizeof name, "function_%d (tier %d)", i, 1 + i % 2);
        span(begin, end, name);
        printf("%" PRIu64 " %" PRIu64 " %s\n", begin, end, name);
        jitsym_code registered = JITSYM_CODE(code + 64 * i, 64, name);
        registered.bytes = code + 64 * i;
        if (jitsym_register(session, &registered, NULL) != JITSYM_OK) return 1;
    }
    char longest[1000];
    for (size_t i = 0; i < sizeof longest; i++) longest[i] = 'x';
    longest[sizeof longest - 1] = 0;
    uint64_t end = now();
    span(end, end + 1, longest);
    return jitsym_close(session) != JITSYM_OK;
}
