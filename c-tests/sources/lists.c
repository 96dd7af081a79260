/*
 * A runtime that tells debuggers of objects and takes them back at random, and unmaps them at once, in a process with the bridge. It
 * keeps the truth: what is in the list at the end. A forked child adds one more, and so makes files with exactly that code.
 *
 * usage: lists SEED DIRECTORY VARIANTS (objects 0.o, 1.o, ... are there)
 */
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

struct jit_code_entry {
    struct jit_code_entry *next_entry, *prev_entry;
    const char *symfile_addr;
    uint64_t symfile_size;
};

struct jit_descriptor {
    uint32_t version, action_flag;
    struct jit_code_entry *relevant_entry, *first_entry;
};

/* As LLVM has them: nobody can put a function of his own in the place of the first. With SHARED, a shared library's: the one that is
 * loaded first is called. */
#ifdef SHARED
#define VISIBILITY "default"
#define main lists_main
#else
#define VISIBILITY "hidden"
#endif
__attribute__((noinline, visibility(VISIBILITY))) void __jit_debug_register_code(void) {
    __asm__ volatile("" ::: "memory");
}
__attribute__((visibility(VISIBILITY))) struct jit_descriptor __jit_debug_descriptor = {1, 0, NULL, NULL};

enum { SLOTS = 48, SLOT = 4096, STEPS = 3000, VARIANTS_MAX = 16 };

static uint64_t state;

static unsigned below(unsigned bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % bound;
}

static struct {
    unsigned char *bytes;
    size_t size;
} variants[VARIANTS_MAX];
static unsigned char *arena;
static struct {
    struct jit_code_entry *entry;
    size_t size;
    int variant;
} slots[SLOTS + 2];

/* How many functions were told of. */
static unsigned long told;

static void tell(uint32_t action, struct jit_code_entry *entry) {
    __jit_debug_descriptor.relevant_entry = entry;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = 0;
}

/* Counts the functions of an object, by way of its own symbols, and prints them. */
static unsigned long functions(int slot, int printed) {
    unsigned long count = 0;
    const char *object = slots[slot].entry->symfile_addr;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)object;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(object + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(object + sections[i].sh_offset);
        const char *strings = object + sections[sections[i].sh_link].sh_offset;
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++)
            if (ELF64_ST_TYPE(symbols[n].st_info) == STT_FUNC) {
                count++;
                if (printed)
                    printf("%lx %lx %s\n", (unsigned long)(arena + slot * SLOT + symbols[n].st_value),
                           (unsigned long)symbols[n].st_size, strings + symbols[n].st_name);
            }
    }
    return count;
}

/* The one section of an object that has code. */
static Elf64_Shdr *code_of(char *object) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)object;
    Elf64_Shdr *sections = (Elf64_Shdr *)(object + header->e_shoff), *found = NULL;
    for (int i = 0; i < header->e_shnum; i++)
        if (sections[i].sh_flags & SHF_EXECINSTR && sections[i].sh_size) {
            CHECK(!found);
            found = &sections[i];
        }
    CHECK(found);
    return found;
}

/* Puts the code of a variant into a slot, and an object that says so into the list. */
static void add(int slot, int variant) {
    size_t size = variants[variant].size;
    /* The library may still be reading an older list, whose entries and objects have been freed and used again. The last object and
     * its entry are where none was before. So the library knows all that came and went before, once it knows the last object. */
    static struct {
        struct jit_code_entry entry;
        unsigned char object[1 << 14];
    } last;
    int is_last = slot == SLOTS;
    CHECK(size <= sizeof last.object);
    unsigned char *object =
        is_last ? last.object : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(object != MAP_FAILED);
    memcpy(object, variants[variant].bytes, size);
    Elf64_Shdr *code = code_of((char *)object);
    CHECK(code->sh_size <= SLOT);
    code->sh_addr = (uint64_t)(arena + slot * SLOT);
    memcpy(arena + slot * SLOT, object + code->sh_offset, code->sh_size);
    struct jit_code_entry *entry = is_last ? &last.entry : malloc(sizeof *entry);
    CHECK(entry);
    *entry = (struct jit_code_entry){__jit_debug_descriptor.first_entry, NULL, (char *)object, size};
    if (entry->next_entry) entry->next_entry->prev_entry = entry;
    __jit_debug_descriptor.first_entry = entry;
    tell(1, entry);
    slots[slot].entry = entry;
    slots[slot].size = size;
    slots[slot].variant = variant;
    told += functions(slot, 0);
}

static void take(int slot) {
    struct jit_code_entry *entry = slots[slot].entry;
    /* Nobody else has changed the code. */
    const Elf64_Shdr *code = code_of((char *)entry->symfile_addr);
    CHECK(memcmp((void *)code->sh_addr, entry->symfile_addr + code->sh_offset, code->sh_size) == 0);
    if (entry->prev_entry)
        entry->prev_entry->next_entry = entry->next_entry;
    else
        __jit_debug_descriptor.first_entry = entry->next_entry;
    if (entry->next_entry) entry->next_entry->prev_entry = entry->prev_entry;
    tell(2, entry);
    CHECK(munmap((void *)entry->symfile_addr, slots[slot].size) == 0);
    memset(entry, 0xa5, sizeof *entry);
    free(entry);
    slots[slot].entry = NULL;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Waits until the map of this process has all functions in a slot. */
static void await(int slot) {
    char path[4096], line[1024];
    snprintf(path, sizeof path, "%s/perf-%d.map", getenv("JITSYM_DIR"), (int)getpid());
    uintptr_t start = (uintptr_t)(arena + slot * SLOT);
    for (int turn = 0; turn < 12000; turn++) {
        FILE *map = fopen(path, "r");
        unsigned long found = 0;
        while (map && fgets(line, sizeof line, map)) found += strtoul(line, NULL, 16) - start < SLOT;
        if (map) fclose(map);
        if (found == functions(slot, 0)) return;
        pause_ms(10);
    }
    CHECK(!"the code is in the map");
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    state = strtoull(argv[1], NULL, 0) * 2 + 1;
    int count = atoi(argv[3]);
    CHECK(count > 0 && count <= VARIANTS_MAX);
    for (int variant = 0; variant < count; variant++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d.o", argv[2], variant);
        int file = open(path, O_RDONLY);
        struct stat known;
        CHECK(file >= 0 && fstat(file, &known) == 0);
        variants[variant].size = (size_t)known.st_size;
        variants[variant].bytes = malloc(variants[variant].size);
        CHECK(read(file, variants[variant].bytes, variants[variant].size) == known.st_size);
        close(file);
    }
    arena = mmap(NULL, (SLOTS + 2) * SLOT, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(arena != MAP_FAILED);
    for (int step = 0; step < STEPS; step++) {
        int slot = (int)below(SLOTS);
        if (slots[slot].entry)
            take(slot);
        else
            add(slot, (int)below((unsigned)count));
        /* Now and then the bridge has the time to see it. */
        if (below(40) == 0) pause_ms(below(12));
    }
    /* All that was added and taken before is known when this one is. */
    add(SLOTS, 0);
    await(SLOTS);
    for (int slot = 0; slot <= SLOTS; slot++)
        if (slots[slot].entry) functions(slot, 1);
    printf("total %lu of %d\n", told, (int)getpid());
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        add(SLOTS + 1, 0);
        await(SLOTS + 1);
        printf("child ");
        functions(SLOTS + 1, 1);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    printf("pid %d\n", (int)child);
    return 0;
}
