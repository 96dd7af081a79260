/* Registers, moves and unregisters between two calls that a tracer recognises. */
#define _GNU_SOURCE
#include <jitsym.h>

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 64, WARM_UP = 100, COUNT = 1000 };

static jitsym *session;
static unsigned char *memory;
static int failures;

static jitsym_id enter(int number, const void *bytes) {
    jitsym_line lines[2] = {{0, 1, 1, 0, "/guest/a"}, {32, 2, 0, 0, "/guest/a"}};
    jitsym_unwind unwind = {.struct_size = sizeof unwind, .kind = JITSYM_UNWIND_FRAME_POINTER};
    jitsym_code code = {.struct_size = sizeof code};
    code.addr = (uint64_t)(uintptr_t)(memory + SIZE * number);
    code.size = SIZE;
    code.bytes = bytes;
    code.name = "a function";
    code.unwind = &unwind;
    code.lines = lines;
    code.line_count = 2;
    jitsym_id id = 0;
    failures += jitsym_register(session, &code, &id) != JITSYM_OK;
    return id;
}

int main(void) {
    memory = mmap(NULL, SIZE * (COUNT + WARM_UP), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || jitsym_init(NULL, &session) != JITSYM_OK) return 1;
    memset(memory, 0xc3, SIZE * (COUNT + WARM_UP));
    for (int i = 0; i < WARM_UP; i++) enter(COUNT + i, memory);

    /* Not more than fit the thread's chunk: changing chunks may wake the writer. */
    getppid();
    for (int i = 0; i < COUNT / 2; i++) {
        jitsym_id id = enter(i, memory);
        jitsym_move_target target = {.struct_size = sizeof target, .bytes = memory};
        target.addr = (uint64_t)(uintptr_t)(memory + SIZE * (i + COUNT / 2));
        if (i % 8 == 0) failures += jitsym_move(session, id, &target) != JITSYM_OK;
        if (i % 4 == 0) failures += jitsym_unregister(session, id) != JITSYM_OK;
    }
    getppid();

    getppid();
    for (int i = 0; i < 10; i++) enter(i, NULL);
    getppid();
    return failures != 0 || jitsym_close(session) != JITSYM_OK;
}
