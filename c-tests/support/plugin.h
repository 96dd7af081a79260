/* What a plugin that has the static library inside gives to its host: nothing else in it can be seen from outside. */
#ifndef PLUGIN_H
#define PLUGIN_H

#include "jitsym.h"
#include "jitsym_control.h"

#define PLUGIN_FUNCTIONS(FUNCTION)  \
  FUNCTION(jitsym_init)             \
  FUNCTION(jitsym_register)         \
  FUNCTION(jitsym_move)             \
  FUNCTION(jitsym_unregister)       \
  FUNCTION(jitsym_unregister_range) \
  FUNCTION(jitsym_flush)            \
  FUNCTION(jitsym_flush_from_signal) \
  FUNCTION(jitsym_enable)           \
  FUNCTION(jitsym_disable)          \
  FUNCTION(jitsym_close)            \
  FUNCTION(jitsym_get_stats)        \
  FUNCTION(jitsym_path)             \
  FUNCTION(jitsym_last_error)       \
  FUNCTION(jitsym_version_number)

struct plugin {
#define PLUGIN_MEMBER(name) __typeof__(name) *name;
  PLUGIN_FUNCTIONS(PLUGIN_MEMBER)
};

#endif
