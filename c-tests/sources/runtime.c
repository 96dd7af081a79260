/* A runtime that speaks Intel's JIT profiling API, as far as the collector sees it. There may be several in a process. */
#include "runtime.h"

#include <dlfcn.h>
#include <stdlib.h>

static unsigned (*notify)(unsigned, void *);

unsigned runtime_start(void) {
    void *library = dlopen(getenv("INTEL_JIT_PROFILER64"), RTLD_LAZY);
    if (!library) return 0;
    unsigned (*initialize)(void) = (unsigned (*)(void))dlsym(library, "Initialize");
    notify = (unsigned (*)(unsigned, void *))dlsym(library, "NotifyEvent");
    return initialize && notify ? initialize() : 0;
}

unsigned runtime_notify(unsigned event, void *data) {
    unsigned answer = notify(event, data);
    return answer;
}
