/*
 * Registers MoarVM's compiled code with libjitsym: names, line tables, inlined frames and unwind tables.
 *
 * build.sh includes this file at the end of src/jit/compile.c. Macros in jitsym_moarvm.h redirect the memory functions that
 * src/jit/compile.c calls to the functions below. The file is for x86-64 and POSIX. If no environment variable enables it,
 * MoarVM behaves as before. Without the library, jitsym_dl.h writes the perf map.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "jitsym_moarvm.h"

#undef MVM_platform_alloc_pages
#undef MVM_platform_set_page_mode
#undef MVM_platform_free_pages
#undef dasm_encode

#include "jitsym_dl.h"

#include <pthread.h>
#include <unistd.h>

static jitsym *jitsym_session;
static int jitsym_own_memory;

/* A lock for changes of executable memory. While the library registers code, it may exchange executable memory for a region.
 * During this time, no other thread may unmap such memory or change its protection. */
static pthread_mutex_t jitsym_lock = PTHREAD_MUTEX_INITIALIZER;

/* The memory of the function that this thread compiles, if the library has allocated it. */
static __thread jitsym_region jitsym_memory = JITSYM_REGION;

/*
 * MVM_JITSYM=1 enables the sinks that the library's own variables name, or all sinks if these name none. MVM_JITSYM=own does
 * the same, but leaves code in memory that MoarVM maps itself. Without MVM_JITSYM, the library's variables decide. MoarVM's
 * own MVM_JIT_PERF_MAP enables the map.
 */
void MVM_jitsym_init(void) {
    jitsym_options options = JITSYM_OPTIONS;
    const char *wanted = getenv("MVM_JITSYM"), *map = getenv("MVM_JIT_PERF_MAP");
    jitsym *session = NULL;

    if (wanted == NULL || wanted[0] == 0)
        options.flags = JITSYM_INIT_OFF_BY_DEFAULT;
    if (map != NULL && map[0] != 0) {
        options.sinks = JITSYM_SINK_MAP;
        options.flags |= JITSYM_INIT_ENV_WINS;
    }
    if (jitsym_session != NULL || jitsym_init(&options, &session) != JITSYM_OK)
        return;
    jitsym_own_memory = wanted != NULL && strcmp(wanted, "own") == 0;
    jitsym_session = session;
}

void MVM_jitsym_close(void) {
    jitsym_close(jitsym_session);
    jitsym_session = NULL;
}

/* ------------------------------------------------------------------------------------------------ memory */

static int jitsym_has_files(void) {
    return (jitsym_wanted(jitsym_session) & JITSYM_WANT_REGION) != 0;
}

/* Allocates the memory in which the code will run. Memory of the library is used only if it has a file, because it has no
 * advantage otherwise. */
void * MVM_jitsym_alloc_pages(size_t size, int mode) {
    jitsym_region memory = JITSYM_REGION;
    if (!jitsym_own_memory && jitsym_has_files() &&
        jitsym_alloc(jitsym_session, size, 0, 0, &memory) == JITSYM_OK) {
        if (jitsym_has_files()) {
            jitsym_memory = memory;
            return memory.exec;
        }
        jitsym_free(jitsym_session, memory.exec);
    }
    jitsym_memory.exec = NULL;
    return MVM_platform_alloc_pages(size, mode);
}

/* Returns the address at which the code is written. */
void * MVM_jitsym_writable(void *memory) {
    return memory == jitsym_memory.exec ? jitsym_memory.write : memory;
}

int MVM_jitsym_set_page_mode(void *memory, size_t size, int mode) {
    int done;
    if (memory == jitsym_memory.exec)
        return 1;
    pthread_mutex_lock(&jitsym_lock);
    done = MVM_platform_set_page_mode(memory, size, mode);
    pthread_mutex_unlock(&jitsym_lock);
    return done;
}

int MVM_jitsym_free_pages(void *memory, size_t size, int is_region) {
    /* All pages are unmapped, including the rest of the last page. */
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), mapped = (size + page - 1) / page * page;
    int done;
    if (is_region || memory == jitsym_memory.exec)
        return jitsym_free(jitsym_session, memory) == JITSYM_OK;
    pthread_mutex_lock(&jitsym_lock);
    jitsym_unregister_range(jitsym_session, (uint64_t)(uintptr_t)memory, mapped, JITSYM_RANGE_UNMAP);
    done = MVM_platform_free_pages(memory, size);
    pthread_mutex_unlock(&jitsym_lock);
    return done;
}

/* ------------------------------------------------------------------------------------------------ unwinding */

enum { RBX = 3, R13 = 13, R14 = 14 };

static const jitsym_saved_register jitsym_saved[] = { { R14, -24 }, { R13, -32 }, { RBX, -40 } };

/*
 * Describes the frame that MVM_jit_emit_prologue and MVM_jit_emit_epilogue (src/jit/x64/emit.dasc) make. The CFA is an offset
 * from rsp, which is constant in the body. An offset from rbp would also be right, but perf copies no stack below rsp, and
 * rsp needs no register of another frame.
 */
static int jitsym_frame(const MVMuint8 *code, size_t size, size_t exit, jitsym_unwind *unwind) {
    static const MVMuint8 prologue[] = {
        0x55,                                     /*  0 push rbp */
        0x48, 0x89, 0xe5,                         /*  1 mov rbp, rsp */
        0x48, 0x81, 0xec, 0x00, 0x01, 0x00, 0x00, /*  4 sub rsp, 0x100 */
        0x4c, 0x89, 0x75, 0xf8,                   /* 11 mov [rbp-8], r14 */
        0x4c, 0x89, 0x6d, 0xf0,                   /* 15 mov [rbp-16], r13 */
        0x48, 0x89, 0x5d, 0xe8,                   /* 19 mov [rbp-24], rbx */
    };
    static const MVMuint8 epilogue[] = { 0x48, 0x89, 0xec, 0x5d, 0xc3 }; /* mov rsp, rbp; pop rbp; ret */
    if (size < sizeof prologue || memcmp(code, prologue, sizeof prologue) != 0)
        return 0;
    for (; exit + sizeof epilogue <= size; exit++) {
        if (memcmp(code + exit, epilogue, sizeof epilogue) != 0)
            continue;
        unwind->fp_pushed = 1;
        unwind->sp_set = 11;
        unwind->saved_from = sizeof prologue;
        unwind->cfa_offset = 0x110;
        unwind->saved = jitsym_saved;
        unwind->saved_count = 3;
        unwind->sp_reset = exit + 3;
        unwind->epilogue_begin = exit + 4;
        /* Data may follow, which belongs to the function but is not code. */
        unwind->epilogue_end = exit + 5;
        return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------ lines */

#define JITSYM_FILES 64

/* The file names that one function uses. If such a file exists, its name is made absolute. */
typedef struct {
    char *names[JITSYM_FILES];
    MVMCompUnit *units[JITSYM_FILES];
    MVMuint32 indices[JITSYM_FILES];
    MVMuint32 count;
} JitsymFiles;

static const char * jitsym_file(MVMThreadContext *tc, JitsymFiles *files, MVMCompUnit *cu, MVMuint32 index) {
    MVMString *string = cu->body.filename;
    char *name, *absolute;
    MVMuint32 i;
    for (i = 0; i < files->count; i++)
        if (files->units[i] == cu && files->indices[i] == index)
            return files->names[i];
    if (i == JITSYM_FILES)
        return NULL;
    if (index < cu->body.num_strings)
        string = MVM_cu_string(tc, cu, index);
    if (string == NULL)
        return NULL;
    name = MVM_string_utf8_encode_C_string(tc, string);
    absolute = realpath(name, NULL);
    if (absolute != NULL) {
        MVM_free(name);
        name = absolute;
    }
    files->names[i] = name;
    files->units[i] = cu;
    files->indices[i] = index;
    files->count++;
    return name;
}

/* Returns the line of an offset in the bytecode of a frame, or 0 if the offset has no line. */
static MVMuint32 jitsym_line_at(MVMThreadContext *tc, JitsymFiles *files, MVMStaticFrame *sf, MVMuint32 pc, const char **file) {
    MVMBytecodeAnnotation *found = MVM_bytecode_resolve_annotation(tc, &sf->body, pc);
    MVMuint32 line = found == NULL ? 0 : found->line_number;
    *file = found == NULL ? NULL : jitsym_file(tc, files, sf->body.cu, found->filename_string_heap_index);
    MVM_free(found);
    return *file == NULL ? 0 : line;
}

/* ------------------------------------------------------------------------------------------------ inlined frames */

typedef struct {
    MVMuint32 begin, end, index;
    int parent;
    MVMStaticFrame *sf;
} JitsymInline;

/* Sorts outer frames before inner frames, and then by their order in the code. MoarVM's table has the innermost frame first. */
static int jitsym_compare(const void *a, const void *b) {
    const JitsymInline *left = a, *right = b;
    if (left->begin != right->begin)
        return left->begin < right->begin ? -1 : 1;
    if (left->end != right->end)
        return left->end > right->end ? -1 : 1;
    return left->index > right->index ? -1 : 1;
}

/* Returns the ranges of inlined frames that are properly nested. Other ranges are left out. */
static MVMuint32 jitsym_inlines(MVMJitGraph *jg, MVMJitCode *code, JitsymInline *found) {
    MVMuint32 count = 0, kept = 0, i;
    for (i = 0; i < code->num_inlines; i++) {
        const MVMJitInline *range = &code->inlines[i];
        MVMuint32 begin, end;
        if (jg->sg->inlines[i].unreachable || range->start_label < 0 || range->end_label < 0)
            continue;
        begin = (char *)code->labels[range->start_label] - (char *)code->func_ptr;
        end = (char *)code->labels[range->end_label] - (char *)code->func_ptr;
        if (begin < end && end <= code->size) {
            JitsymInline one = { begin, end, i, -1, jg->sg->inlines[i].sf };
            found[count++] = one;
        }
    }
    qsort(found, count, sizeof *found, jitsym_compare);
    for (i = 0; i < count; i++) {
        JitsymInline one = found[i];
        int parent = (int)kept - 1;
        while (parent >= 0 && found[parent].end <= one.begin)
            parent = found[parent].parent;
        if (parent >= 0 && found[parent].end < one.end)
            continue;
        one.parent = parent;
        found[kept++] = one;
    }
    return kept;
}

static int jitsym_innermost(const JitsymInline *inlines, MVMuint32 count, MVMuint32 offset) {
    int i;
    for (i = (int)count - 1; i >= 0; i--)
        if (inlines[i].begin <= offset && offset < inlines[i].end)
            return i;
    return -1;
}

/* ------------------------------------------------------------------------------------------------ registration */

static char * jitsym_name(MVMThreadContext *tc, MVMStaticFrame *sf) {
    char *name = sf->body.name ? MVM_string_utf8_encode_C_string(tc, sf->body.name) : NULL;
    char *place = MVM_staticframe_file_location(tc, sf);
    size_t size = (name ? strlen(name) : 0) + strlen(place) + sizeof "<anon> ";
    char *result = MVM_malloc(size);
    snprintf(result, size, "%s %s", name && name[0] ? name : "<anon>", place);
    MVM_free(name);
    MVM_free(place);
    return result;
}

static MVMuint32 jitsym_lines(MVMThreadContext *tc, MVMJitGraph *jg, MVMJitCode *code, JitsymFiles *files,
                              const JitsymInline *inlines, MVMuint32 num_inlines, jitsym_line *lines) {
    MVMuint32 count = 0;
    MVMSpeshBB *bb;
    jitsym_line first = { 0, 0, 0, 0, NULL };
    first.line = jitsym_line_at(tc, files, jg->sg->sf, 0, &first.file);
    if (first.line != 0)
        lines[count++] = first;
    for (bb = jg->sg->entry; bb != NULL; bb = bb->linear_next) {
        jitsym_line row = { 0, 0, 0, 0, NULL };
        MVMStaticFrame *sf = jg->sg->sf;
        if ((MVMuint32)bb->idx >= code->num_labels)
            continue;
        row.offset = (char *)code->labels[bb->idx] - (char *)code->func_ptr;
        if (bb->inlined) {
            int inside = jitsym_innermost(inlines, num_inlines, row.offset);
            if (inside < 0)
                continue;
            sf = inlines[inside].sf;
        }
        row.line = jitsym_line_at(tc, files, sf, bb->initial_pc, &row.file);
        if (row.line != 0 && row.offset < code->size)
            lines[count++] = row;
    }
    return count;
}

void MVM_jitsym_compiled(MVMThreadContext *tc, MVMJitGraph *jg, MVMJitCode *code) {
    MVMStaticFrame *sf = jg->sg->sf;
    jitsym_code announced = JITSYM_CODE(code->func_ptr, code->size, "<native call>");
    jitsym_unwind unwind = JITSYM_UNWIND(JITSYM_UNWIND_FIXED_FRAME);
    JitsymFiles files = { { NULL }, { NULL }, { 0 }, 0 };
    JitsymInline *inlines = NULL;
    jitsym_inline *frames = NULL;
    jitsym_line *lines = NULL;
    char *name = NULL;
    MVMuint32 num_inlines = 0, num_frames = 0, i;
    uint32_t wanted;

    code->jitsym_memory = code->func_ptr != NULL && (void *)code->func_ptr == jitsym_memory.exec;
    if (code->jitsym_memory) {
        code->exit_label = (char *)code->exit_label - (char *)jitsym_memory.write + (char *)jitsym_memory.exec;
        jitsym_memory.exec = NULL;
    }
    wanted = jitsym_wanted(jitsym_session);
    if ((wanted & JITSYM_WANT_CODE) == 0)
        return;

    announced.bytes = code->func_ptr;
    if (jitsym_frame(announced.bytes, code->size, (char *)code->exit_label - (char *)code->func_ptr, &unwind))
        announced.unwind = &unwind;

    /* A stub for a native call does not belong to a frame. */
    if (sf != NULL) {
        announced.name = name = jitsym_name(tc, sf);
    }
    if (sf != NULL && (wanted & JITSYM_WANT_LINES) != 0) {
        inlines = MVM_malloc((code->num_inlines + 1) * sizeof *inlines);
        frames = MVM_calloc(code->num_inlines + 1, sizeof *frames);
        num_inlines = jitsym_inlines(jg, code, inlines);
        lines = MVM_malloc((jg->sg->num_bbs + 2) * sizeof *lines);
        announced.line_count = jitsym_lines(tc, jg, code, &files, inlines, num_inlines, lines);
        announced.line_size = sizeof *lines;
        announced.lines = lines;
        for (i = 0; i < num_inlines; i++) {
            const MVMSpeshInline *origin = &jg->sg->inlines[inlines[i].index];
            MVMStaticFrame *caller = inlines[i].parent < 0 ? sf : inlines[inlines[i].parent].sf;
            MVMint32 after = jg->sg->deopt_addrs[2 * origin->return_deopt_idx];
            jitsym_inline *frame = &frames[num_frames];
            frame->begin = inlines[i].begin;
            frame->end = inlines[i].end;
            frame->name = jitsym_name(tc, inlines[i].sf);
            frame->call_line = jitsym_line_at(tc, &files, caller, after > 0 ? after - 1 : 0, &frame->call_file);
            frame->parent = inlines[i].parent < 0 ? UINT32_MAX : (uint32_t)inlines[i].parent;
            num_frames++;
            if (frame->call_line == 0)
                break;
        }
        /* If the line of one call is unknown, the indices of parents would be wrong, so only lines are registered. */
        announced.inlines = frames;
        announced.inline_size = sizeof *frames;
        announced.inline_count = num_frames == num_inlines && (i == num_inlines) ? num_frames : 0;
    }

    pthread_mutex_lock(&jitsym_lock);
    jitsym_register(jitsym_session, &announced, NULL);
    pthread_mutex_unlock(&jitsym_lock);

    for (i = 0; i < num_frames; i++)
        MVM_free((char *)frames[i].name);
    for (i = 0; i < files.count; i++)
        MVM_free(files.names[i]);
    MVM_free(frames);
    MVM_free(inlines);
    MVM_free(lines);
    MVM_free(name);
}
