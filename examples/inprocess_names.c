/*
 * Definitions of dl_iterate_phdr and dladdr that know compiled code. Crash reporters, sanitizers and heap profilers that call
 * these functions then name compiled code in the stacks that they print (docs/crash-handlers.md). Preload this file into a
 * program, or link it with the program:
 *
 *     cc -O2 -shared -fPIC inprocess_names.c -o inprocess_names.so $(pkg-config --cflags jitsym)
 *     LD_PRELOAD=$PWD/inprocess_names.so program
 *
 *     cc -O2 -c inprocess_names.c $(pkg-config --cflags jitsym)     # never with -fsanitize=
 *     cc program.c inprocess_names.o $(pkg-config --libs jitsym)
 *
 * dl_iterate_phdr also reports the files of regions (docs/regions.md), after the program and its libraries:
 *
 * - Code outside of regions has no file. Many tools read the list once, and do not name code in regions that are made later.
 * - Each call reads /proc/self/maps. dlpi_adds and dlpi_subs do not count regions.
 * - The objects of regions have no unwind tables. JITSYM_SINK_UNWINDER gives the tables to the process's unwinder.
 * - The loader's lock is not held while the callback gets a region, so the region may end meanwhile.
 * - A forked child reports the files that it has mapped: its own, its parent's, or a copy (docs/regions.md#fork-exit-crash).
 *
 * dladdr first asks jitsym_lookup, if the program is linked with the library (with the static library: -rdynamic). The name in
 * dli_sname is valid until the same thread's next call of dladdr.
 *
 * The definitions allocate nothing, take no lock, and need 4 KiB of stack, in addition to what the C library's functions do.
 * glibc's dl_iterate_phdr takes the loader's lock, so a signal handler that calls it may wait for ever. dlclose must not unload
 * this file. A statically linked program that contains this file crashes, because there are no other definitions to call.
 */
#define _GNU_SOURCE
#include <jitsym_control.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int dl_callback(struct dl_phdr_info *, size_t, void *);

enum { SEGMENTS = 8, LINE = JITSYM_DIR_MAX + 256 };

/* A region, while its lines are read. The counters of its info are those of the last library. */
struct report {
    dl_callback *callback;
    void *data;
    size_t size;
    struct dl_phdr_info info;
    ElfW(Phdr) segments[SEGMENTS];
    char path[LINE];
};

static int (*next_iterate)(dl_callback *, void *);
static int (*next_dladdr)(const void *, Dl_info *);

/* Sanitizers call dl_iterate_phdr before constructors run. */
__attribute__((constructor)) static void find_next(void) {
    *(void **)&next_iterate = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    *(void **)&next_dladdr = dlsym(RTLD_NEXT, "dladdr");
}

static int report_loaded(struct dl_phdr_info *info, size_t size, void *data) {
    struct report *report = data;
    report->size = size;
    memcpy(&report->info, info, size < sizeof *info ? size : sizeof *info);
    return report->callback(info, size, report->data);
}

static int report_region(struct report *report) {
    int count = report->info.dlpi_phnum;
    int result = count != 0 ? report->callback(&report->info, report->size, report->data) : 0;
    report->info.dlpi_phnum = 0;
    return result;
}

/* Whether a path is that of a region's file: jit-PID-N.so, jit-PID-N.E.so, jitted-PID-rN.so. */
static int is_region(const char *path) {
    const char *name = strrchr(path, '/'), *end = strrchr(path, '.');
    size_t digit = strncmp(name, "/jit-", 5) == 0 ? 5 : strncmp(name, "/jitted-", 8) == 0 ? 8 : 0;
    return digit != 0 && name[digit] >= '0' && name[digit] <= '9' && end != NULL && strcmp(end, ".so") == 0;
}

/* Reads a line of /proc/self/maps: START-END RIGHTS OFFSET DEVICE INODE PATH. */
static int read_line(struct report *report, char *line) {
    struct dl_phdr_info *info = &report->info;
    char *at, *path = strchr(line, '/');
    if (path == NULL || !is_region(path)) return 0;
    ElfW(Addr) start = strtoul(line, &at, 16);
    ElfW(Addr) end = *at == '-' ? strtoul(at + 1, &at, 16) : 0;
    if (end == 0 || *at != ' ' || at[3] != 'x') return 0;
    ElfW(Off) offset = strtoul(at + 6, NULL, 16); /* In these files, addresses equal offsets. */
    int goes_on = info->dlpi_addr == start - offset && info->dlpi_phnum < SEGMENTS && strcmp(report->path, path) == 0;
    int result = goes_on ? 0 : report_region(report);
    strcpy(report->path, path);
    info->dlpi_name = report->path;
    info->dlpi_addr = start - offset;
    info->dlpi_phdr = report->segments;
    info->dlpi_tls_modid = 0;
    info->dlpi_tls_data = NULL;
    report->segments[info->dlpi_phnum++] = (ElfW(Phdr)){
        .p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_offset = offset, .p_vaddr = offset, .p_paddr = offset,
        .p_filesz = end - start, .p_memsz = end - start, .p_align = 4096};
    return result;
}

static int report_regions(struct report *report) {
    int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC), result = 0;
    char text[LINE], *end;
    size_t length = 0;
    ssize_t got;
    report->info.dlpi_phnum = 0;
    while (result == 0 && (got = read(maps, text + length, sizeof text - length)) > 0) {
        char *line = text, *all = text + length + got;
        while (result == 0 && (end = memchr(line, '\n', (size_t)(all - line))) != NULL) {
            *end = 0;
            result = read_line(report, line);
            line = end + 1;
        }
        length = line == text ? 0 : (size_t)(all - line); /* A line that is too long is no region's. */
        memmove(text, line, length);
    }
    if (maps >= 0) close(maps);
    return result != 0 ? result : report_region(report);
}

int dl_iterate_phdr(dl_callback *callback, void *data) {
    struct report report = {callback, data, 0, {0}, {{0}}, ""};
    if (next_iterate == NULL) find_next();
    int result = next_iterate(report_loaded, &report);
    int error = errno;
    result = result != 0 ? result : report_regions(&report);
    errno = error;
    return result;
}

extern __typeof__(jitsym_lookup) jitsym_lookup __attribute__((weak));

int dladdr(const void *address, Dl_info *info) {
    static _Thread_local char name[1024];
    jitsym_function function = JITSYM_FUNCTION(name, sizeof name, NULL, 0);
    for (uint32_t number = 0; jitsym_lookup != NULL && jitsym_lookup(address, number, &function) == JITSYM_OK; number++) {
        if (function.is_inlined) continue;
        uintptr_t start = (uintptr_t)function.addr;
        *info = (Dl_info){"[compiled code]", (void *)start, name, (void *)start};
        return 1;
    }
    if (next_dladdr == NULL) find_next();
    return next_dladdr(address, info);
}
