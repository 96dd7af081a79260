/* Loads two plugins that have the static library inside, and has both use it.
 *
 *   host local|global ONE TWO */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef int use(const char *name, const void *bytes, size_t size);

int main(int argc, char **argv) {
  static const unsigned char code[2][64];
  static const char *const names[] = {"one", "two"};
  if (argc != 4) {
    return 2;
  }
  int scope = strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL : RTLD_LOCAL;
  for (int i = 0; i < 2; i++) {
    void *plugin = dlopen(argv[2 + i], RTLD_NOW | scope);
    use *function = plugin == NULL ? NULL : (use *)dlsym(plugin, "use_jitsym");
    if (function == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    int status = function(names[i], code[i], sizeof code[i]);
    if (status != 0) {
      fprintf(stderr, "%s: status %d\n", names[i], status);
      return 1;
    }
  }
  return 0;
}
