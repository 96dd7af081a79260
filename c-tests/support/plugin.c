/* A plugin that is linked with the static library, and shows none of its symbols. */
#include "plugin.h"

__attribute__((visibility("default"))) const struct plugin plugin_functions = {
#define PLUGIN_VALUE(name) name,
    PLUGIN_FUNCTIONS(PLUGIN_VALUE)};
