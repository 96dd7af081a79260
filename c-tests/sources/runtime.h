/* The structs of Intel's JIT profiling API, as jitprofiling.h lays them out, written down once more. */
#ifndef RUNTIME_H
#define RUNTIME_H

enum { SHUTDOWN = 2, LOAD = 13, UNLOAD = 14, UPDATE = 15, INLINE_LOAD = 16, UPDATE_V2 = 17, LOAD_V2 = 21, LOAD_V3 = 22 };

struct row {
    unsigned offset, line;
};

struct method_load {
    unsigned method_id;
    char *method_name;
    void *method_load_address;
    unsigned method_size, line_number_size;
    struct row *line_number_table;
    unsigned class_id;
    char *class_file_name, *source_file_name;
};

struct method_load_v2 {
    unsigned method_id;
    char *method_name;
    void *method_load_address;
    unsigned method_size, line_number_size;
    struct row *line_number_table;
    char *class_file_name, *source_file_name, *module_name;
    int module_arch; /* V3 alone */
};

struct method_inline_load {
    unsigned method_id, parent_method_id;
    char *method_name;
    void *method_load_address;
    unsigned method_size, line_number_size;
    struct row *line_number_table;
    char *class_file_name, *source_file_name;
};

struct method_update {
    void *load_address;
    unsigned size;
    int type;
    const char *data_format;
};

/* A runtime: loads the collector, and passes events on. */
unsigned runtime_start(void);
unsigned runtime_notify(unsigned event, void *data);

#endif
