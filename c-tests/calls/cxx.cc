// The header in C++, from C++11 on, with exceptions and without.
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "check.h"
#include "jitsym.h"

static_assert(std::is_standard_layout<jitsym_code>::value && std::is_trivial<jitsym_code>::value, "a C struct");
static_assert(std::is_same<jitsym_id, uint64_t>::value, "an integer");
static_assert(JITSYM_OK == 0 && JITSYM_ERR_NULL == 1, "a status is tested with if");

namespace {

// Structs with default values are what C++ programs write: value initialisation makes zero of all fields.
class Session {
 public:
  explicit Session(const char* dir) {
    jitsym_options options{};
    options.struct_size = sizeof options;
    options.sinks = JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP;
    options.map_dir = dir;
    options.jitdump_dir = dir;
    CHECK_OK(jitsym_init(&options, &handle_));
  }
  ~Session() { CHECK_OK(jitsym_close(handle_)); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  jitsym_id add(uint64_t addr, const std::string& name) {
    static const unsigned char bytes[32] = {0xc3};
    jitsym_code code{};
    code.struct_size = sizeof code;
    code.addr = addr;
    code.size = sizeof bytes;
    code.bytes = bytes;
    code.name = name.data();
    code.name_len = name.size();
    jitsym_id id = 0;
    CHECK_OK(jitsym_register(handle_, &code, &id));
    return id;
  }
  void remove(jitsym_id id) { CHECK_OK(jitsym_unregister(handle_, id)); }
  jitsym_stats stats() {
    jitsym_stats stats{};
    stats.struct_size = sizeof stats;
    CHECK_OK(jitsym_flush(handle_, 60000));
    CHECK_OK(jitsym_get_stats(handle_, &stats));
    return stats;
  }

 private:
  jitsym* handle_ = nullptr;
};

// Code that is registered as long as it is in scope.
class Code {
 public:
  Code(Session& session, uint64_t addr, const std::string& name) : session_(session), id_(session.add(addr, name)) {}
  ~Code() { session_.remove(id_); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

 private:
  Session& session_;
  jitsym_id id_;
};

#if defined(__cpp_exceptions)
// The library is called while an exception unwinds the stack, and does not get in its way.
void throws(Session& session) {
  Code code(session, 0x7000001000, "thrown through");
  throw 42;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc >= 2);
  Session session(argv[1]);
  jitsym_id kept = session.add(0x7000000000, "ns::kept<std::string>(int)");
  { Code code(session, 0x7000002000, "scoped"); }
  jitsym_stats stats = session.stats();
  CHECK(stats.registered == 2 && stats.unregistered == 1 && stats.live == 1);
#if defined(__cpp_exceptions)
  int caught = 0;
  try {
    throws(session);
  } catch (int number) {
    caught = number;
  }
  CHECK(caught == 42);
  stats = session.stats();
  CHECK(stats.registered == 3 && stats.live == 1);
#endif
  // A status in a switch, by its own type.
  jitsym_status status = jitsym_init(nullptr, nullptr);
  switch (status) {
    case JITSYM_ERR_NULL:
      break;
    default:
      CHECK(!"JITSYM_ERR_NULL");
  }
  CHECK(std::strcmp(jitsym_status_name(status), "JITSYM_ERR_NULL") == 0);
  session.remove(kept);
  std::puts("ok");
  return 0;
}
