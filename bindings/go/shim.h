/*
 * What Go calls. The functions of jitsym_dl.h themselves are macros, which cgo does not take for functions.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <jitsym_dl.h>

/* A session is a number here: it is no address, and Go looks at what it takes for pointers. */
typedef uintptr_t handle;

static inline jitsym_status go_load(void) {
    return jitsym_dl_load(NULL);
}

static inline jitsym_status go_init(const jitsym_options *options, handle *out) {
    jitsym *session = NULL;
    jitsym_status status = jitsym_init(options, &session);
    *out = (handle)session;
    return status;
}

/*
 * Memory of Go goes in as arguments, which the call keeps in place; what the struct itself points to is memory of C. `bytes` is no
 * `void *`, for which cgo would look for pointers in all of the object that the bytes are a part of, and refuse them.
 */
static inline jitsym_status go_register(handle session, jitsym_code code, _GoString_ name, const unsigned char *bytes,
                                        jitsym_id *id) {
    code.name_len = _GoStringLen(name);
    code.name = code.name_len != 0 ? _GoStringPtr(name) : NULL;
    code.bytes = bytes;
    return jitsym_register((jitsym *)session, &code, id);
}

static inline jitsym_status go_move(handle session, jitsym_id id, jitsym_move_target target,
                                    const unsigned char *bytes) {
    target.bytes = bytes;
    return jitsym_move((jitsym *)session, id, &target);
}

static inline jitsym_status go_unregister(handle session, jitsym_id id) {
    return jitsym_unregister((jitsym *)session, id);
}

static inline jitsym_status go_unregister_range(handle session, uint64_t addr, uint64_t size, uint32_t flags) {
    return jitsym_unregister_range((jitsym *)session, addr, size, flags);
}

static inline jitsym_status go_flush(handle session, uint32_t timeout_ms) {
    return jitsym_flush((jitsym *)session, timeout_ms);
}

static inline jitsym_status go_enable(handle session, uint32_t sinks) {
    return jitsym_enable((jitsym *)session, sinks);
}

static inline jitsym_status go_disable(handle session, uint32_t sinks) {
    return jitsym_disable((jitsym *)session, sinks);
}

static inline jitsym_status go_close(handle session) {
    return jitsym_close((jitsym *)session);
}

static inline jitsym_status go_get_stats(handle session, jitsym_stats *out) {
    return jitsym_get_stats((jitsym *)session, out);
}

static inline uint32_t go_wanted(handle session) {
    return jitsym_wanted((jitsym *)session);
}

static inline jitsym_status go_last_error(handle session, char *buffer, size_t size) {
    return jitsym_last_error((jitsym *)session, buffer, size);
}

static inline jitsym_status go_path(handle session, uint32_t sink, char *buffer, size_t size) {
    return jitsym_path((jitsym *)session, sink, buffer, size);
}

static inline jitsym_status go_region_create(handle session, const jitsym_region_options *options, jitsym_region *out) {
    return jitsym_region_create((jitsym *)session, options, out);
}

static inline jitsym_status go_region_adopt(handle session, uintptr_t addr, uint64_t size) {
    return jitsym_region_adopt((jitsym *)session, (void *)addr, size);
}

static inline jitsym_status go_region_grow(handle session, uintptr_t exec, uint64_t size) {
    return jitsym_region_grow((jitsym *)session, (void *)exec, size);
}

static inline jitsym_status go_region_discard(handle session, uintptr_t addr, uint64_t size) {
    return jitsym_region_discard((jitsym *)session, (void *)addr, size);
}

static inline jitsym_status go_region_release(handle session, uintptr_t exec) {
    return jitsym_region_release((jitsym *)session, (void *)exec);
}

static inline jitsym_status go_alloc(handle session, uint64_t size, uint64_t alignment, uint64_t near_addr,
                                     jitsym_region *out) {
    return jitsym_alloc((jitsym *)session, size, alignment, near_addr, out);
}

static inline jitsym_status go_shrink(handle session, uintptr_t exec, uint64_t size) {
    return jitsym_shrink((jitsym *)session, (void *)exec, size);
}

static inline jitsym_status go_free(handle session, uintptr_t exec) {
    return jitsym_free((jitsym *)session, (void *)exec);
}

static inline const char *go_status_text(int32_t status) {
    return jitsym_status_text(status);
}

static inline const char *go_status_name(int32_t status) {
    return jitsym_status_name(status);
}

static inline uint32_t go_version_number(void) {
    go_load();
    return jitsym_version_number();
}
