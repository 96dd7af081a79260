/*
 * The smallest program that uses the library as it is installed: one function registered, and found in the perf map.
 *
 *   hello DIRECTORY     an absolute one, for the map
 */
#include <inttypes.h>
#include <jitsym.h>
#include <jitsym_control.h>
#include <stdio.h>
#include <string.h>

/* What a JIT compiler has emitted. Nothing runs it here, so any bytes will do. */
static const unsigned char code_bytes[64];

static int failed(const char *what, jitsym_status status) {
  fprintf(stderr, "%s: %s\n", what, jitsym_status_text((int32_t)status));
  return 1;
}

/* Whether a file has this very line. */
static int has_line(const char *path, const char *expected) {
  FILE *file = fopen(path, "r");
  if (file == NULL) {
    perror(path);
    return 0;
  }
  char line[256];
  int found = 0;
  while (!found && fgets(line, sizeof line, file) != NULL) {
    found = strcmp(line, expected) == 0;
  }
  fclose(file);
  return found;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: hello DIRECTORY\n");
    return 2;
  }
  if (jitsym_version_number() != JITSYM_VERSION_NUMBER) {
    fprintf(stderr, "compiled with another version than %u\n", (unsigned)jitsym_version_number());
    return 1;
  }

  jitsym_options options = {0};
  options.struct_size = sizeof options;
  options.sinks = JITSYM_SINK_MAP;
  options.map_dir = argv[1];
  jitsym *session;
  jitsym_status status = jitsym_init(&options, &session);
  if (status != JITSYM_OK) {
    return failed("jitsym_init", status);
  }

  jitsym_code code = {0};
  code.struct_size = sizeof code;
  code.addr = (uint64_t)(uintptr_t)code_bytes;
  code.size = sizeof code_bytes;
  code.bytes = code_bytes;
  code.name = "hello_from_jit";
  status = jitsym_register(session, &code, NULL);
  if (status != JITSYM_OK) {
    return failed("jitsym_register", status);
  }
  status = jitsym_flush(session, 10000);
  if (status != JITSYM_OK) {
    return failed("jitsym_flush", status);
  }

  char path[JITSYM_DIR_MAX + 33];
  status = jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path);
  if (status != JITSYM_OK) {
    return failed("jitsym_path", status);
  }
  char expected[128];
  snprintf(expected, sizeof expected, "%" PRIx64 " %" PRIx64 " %s\n", code.addr, code.size, code.name);
  if (!has_line(path, expected)) {
    fprintf(stderr, "not in %s: %s", path, expected);
    return 1;
  }

  status = jitsym_close(session);
  if (status != JITSYM_OK) {
    return failed("jitsym_close", status);
  }
  printf("%s\n", path);
  return 0;
}
