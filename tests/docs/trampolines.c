/* An interpreter whose functions are entered through trampolines. */
#include <jitsym_control.h>
#include <jitsym_region.h>
#include <stdio.h>

#define CHECK(condition)                                              \
    if (!(condition)) {                                               \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        return 1;                                                     \
    }

#include "fragments.c"

long interpret(struct function *function, long argument) {
    return argument <= 1 ? 1 : argument * call(function, argument - 1);
}

int main(void) {
    struct function factorial = {"factorial", "/script.toy", 3, NULL}, other = {"other", "/script.toy", 9, NULL};
    CHECK(call(&factorial, 5) == 120 && factorial.entry == NULL);
    jitsym_options options = JITSYM_OPTIONS;
    options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
    CHECK(jitsym_init(&options, &session) == JITSYM_OK);
    CHECK(call(&factorial, 5) == 120 && factorial.entry == NULL);
    CHECK(jitsym_enable(session, 0) == JITSYM_OK);
    CHECK(call(&factorial, 6) == 720 && factorial.entry != NULL && factorial.entry != interpret);
    CHECK(call(&other, 1) == 1 && other.entry != factorial.entry);
    end(&other);

    jitsym_stats stats;
    stats.struct_size = sizeof stats;
    CHECK(jitsym_flush(session, 0) == JITSYM_OK);
    CHECK(jitsym_get_stats(session, &stats) == JITSYM_OK);
    CHECK(stats.registered == 2 && stats.live == 1);
    CHECK(jitsym_disable(session, 0) == JITSYM_OK);
    CHECK(call(&factorial, 5) == 120);
    end(&factorial);
    CHECK(jitsym_close(session) == JITSYM_OK);
    puts("ok");
    return 0;
}
