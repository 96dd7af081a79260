/* Code memory from the library, and the program's own. */
#include <jitsym_region.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(condition)                                              \
    if (!(condition)) {                                               \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        return 1;                                                     \
    }

#include "fragments.c"

static unsigned call(const void *exec) {
    unsigned (*function)(void);
    memcpy(&function, &exec, sizeof function);
    return function();
}

int main(void) {
    static const unsigned char bytes[] = {0xb8, 42, 0, 0, 0, 0xc3}; /* mov eax, 42; ret */
    CHECK(jitsym_init(NULL, &session) == JITSYM_OK);
    void *function = new_function(bytes, sizeof bytes, "in_a_piece", NULL);
    CHECK(function != NULL && call(function) == 42);
    end_function(function);
    CHECK(make_memory());
    CHECK(call(place(0, bytes, sizeof bytes, "first_function")) == 42);
    CHECK(call(place(3 << 20, bytes, sizeof bytes, "second_function")) == 42);

    size_t size = 1 << 16;
    unsigned char *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    memcpy(own, bytes, sizeof bytes);
    CHECK(mprotect(own, size, PROT_READ | PROT_EXEC) == 0);
    CHECK(adopt(own, size) == JITSYM_OK);
    CHECK(call(own) == 42);

    jitsym_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(jitsym_flush(session, 0) == JITSYM_OK);
    CHECK(jitsym_get_stats(session, &stats) == JITSYM_OK);
    CHECK(stats.regions == 3 && stats.region_code == 3 && stats.region_refused == 0);
    CHECK(jitsym_close(session) == JITSYM_OK);
    puts("ok");
    return 0;
}
