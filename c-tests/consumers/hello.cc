// hello.c once more in C++: the header must be usable there, and the libraries must link.
//
//   hello DIRECTORY     an absolute one, for the map
#include <jitsym.h>
#include <jitsym_control.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

// Also for compilers that are told to do without exceptions.
void fail(const std::string &text) {
#ifdef __cpp_exceptions
  throw std::runtime_error(text);
#else
  std::cerr << text << '\n';
  std::exit(1);
#endif
}

void check(const char *what, jitsym_status status) {
  if (status != JITSYM_OK) {
    fail(std::string(what) + ": " + jitsym_status_text(static_cast<int32_t>(status)));
  }
}

// What a JIT compiler has emitted. Nothing runs it here, so any bytes will do.
const unsigned char code_bytes[64] = {};

bool has_line(const std::string &path, const std::string &expected) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line == expected) {
      return true;
    }
  }
  return false;
}

void run(const char *directory) {
  if (jitsym_version_number() != JITSYM_VERSION_NUMBER) {
    fail("compiled with another version than " + std::to_string(jitsym_version_number()));
  }

  jitsym_options options = {};
  options.struct_size = sizeof options;
  options.sinks = JITSYM_SINK_MAP;
  options.map_dir = directory;
  jitsym *session = nullptr;
  check("jitsym_init", jitsym_init(&options, &session));

  jitsym_code code = {};
  code.struct_size = sizeof code;
  code.addr = reinterpret_cast<std::uintptr_t>(code_bytes);
  code.size = sizeof code_bytes;
  code.bytes = code_bytes;
  code.name = "hello_from_jit";
  check("jitsym_register", jitsym_register(session, &code, nullptr));
  check("jitsym_flush", jitsym_flush(session, 10000));

  char path[JITSYM_DIR_MAX + 33];
  check("jitsym_path", jitsym_path(session, JITSYM_SINK_MAP, path, sizeof path));
  std::ostringstream expected;
  expected << std::hex << code.addr << ' ' << code.size << ' ' << code.name;
  if (!has_line(path, expected.str())) {
    fail(std::string("not in ") + path + ": " + expected.str());
  }
  check("jitsym_close", jitsym_close(session));
  std::cout << path << '\n';
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2) {
    std::cerr << "usage: hello DIRECTORY\n";
    return 2;
  }
#ifdef __cpp_exceptions
  try {
    // The library has to be no obstacle to one of the program's own.
    try {
      check("thrown", jitsym_flush(nullptr, 0));
      return 1;
    } catch (const std::runtime_error &) {
    }
    run(argv[1]);
  } catch (const std::exception &error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
#else
  run(argv[1]);
#endif
  return 0;
}
