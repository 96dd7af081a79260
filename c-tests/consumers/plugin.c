/* A plugin that is linked with the static library and hides none of its symbols. */
#include <jitsym.h>
#include <stddef.h>

int use_jitsym(const char *name, const void *bytes, size_t size);

int use_jitsym(const char *name, const void *bytes, size_t size) {
  jitsym *session = NULL;
  jitsym_status status = jitsym_init(NULL, &session);
  jitsym_code code = {.struct_size = sizeof code};
  code.addr = (uint64_t)(uintptr_t)bytes;
  code.size = size;
  code.bytes = bytes;
  code.name = name;
  if (status == JITSYM_OK) {
    status = jitsym_register(session, &code, NULL);
  }
  if (status == JITSYM_OK) {
    status = jitsym_flush(session, 10000);
  }
  /* The session stays open: the exit finds those of both plugins. */
  return (int)status;
}
