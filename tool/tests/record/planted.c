/* A program that writes a jitdump with one piece of code, and then puts something else into its directory, as another user may.
 * planted DIR KIND [VICTIM]: prints its pid, and ends at the end of its standard input. */
#include <poll.h>
#include <sys/stat.h>

#include "jitdump_write.h"

int main(int argc, char **argv)
{
    check(argc >= 3, "usage");
    const char *dir = argv[1], *kind = argv[2], *victim = argc > 3 ? argv[3] : "";
    char path[PAGE], object[PAGE];
    dump_path(path, dir);
    begin_dump(dir);
    unsigned char *code = load(memory(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC), "planted");
    snprintf(object, sizeof object, "%s/jitted-%d-%d.so", dir, (int)getpid(), (int)indices);

    if (strcmp(kind, "links") == 0) {
        check(symlink(victim, object) == 0, object);
    } else if (strcmp(kind, "plain") != 0) {
        check(unlink(path) == 0, path);
        if (strcmp(kind, "fifo") == 0)
            check(mkfifo(path, 0600) == 0, path);
        else
            check(symlink(kind, path) == 0, path);
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
