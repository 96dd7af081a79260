/* A runtime with the loader: it has a map with the library and without it, if a map is asked for. */
#include <stdio.h>
#include <string.h>

#include "fragments.c"

int main(int argc, char **argv) {
    static char code[16];
    int expected = argc == 2 && strcmp(argv[1], "on") == 0;
    if (start() != expected) return 1;
    code_is_ready("by_loader", code, sizeof code);
    if (expected && jitsym_close(session) != JITSYM_OK) return 2;
    puts("ok");
    return 0;
}
