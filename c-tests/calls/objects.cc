// jitsym.hpp: what lives and ends with objects, and what the map says of it.
#include "jitsym.hpp"
#include "jitsym_control.h"

#include <cstdio>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "check.h"

using jitsym_cxx::Code;
using jitsym_cxx::Options;
using jitsym_cxx::Session;

static_assert(!std::is_copy_constructible<Code>::value && !std::is_copy_assignable<Session>::value, "one owner");
static_assert(std::is_nothrow_move_constructible<Code>::value && std::is_nothrow_move_assignable<Session>::value,
              "so that containers move them");

namespace {

const unsigned char bytes[64] = {0xc3};

jitsym_code described(uint64_t addr, const char *name) {
  jitsym_code code = JITSYM_CODE(addr, sizeof bytes, name);
  code.bytes = bytes;
  return code;
}

uint64_t live(Session &session) {
  CHECK_OK(session.flush(60000));
  jitsym_stats stats;
  CHECK_OK(session.stats(stats));
  return stats.live;
}

// The lines of the map that name code at an address.
std::string named_at(Session &session, const std::string &addr) {
  CHECK_OK(session.flush(60000));
  char path[JITSYM_DIR_MAX + 64];
  CHECK_OK(jitsym_path(session.get(), JITSYM_SINK_MAP, path, sizeof path));
  std::FILE *map = std::fopen(path, "r");
  CHECK(map != nullptr);
  std::string found;
  char text[200];
  while (std::fgets(text, sizeof text, map) != nullptr) {
    std::string line(text);
    if (line.compare(0, addr.size() + 1, addr + " ") == 0) {
      found += line.substr(addr.size() + 1, line.size() - addr.size() - 2) + ";";
    }
  }
  CHECK(std::fclose(map) == 0);
  return found;
}

void codes(Session &session) {
  Code first;
  CHECK(!first && first.id() == 0);
  CHECK_OK(first.add(session, described(0x7000000000, "first")));
  CHECK(first && live(session) == 1);
  {
    Code scoped;
    CHECK_OK(scoped.add(session, described(0x7000001000, "scoped")));
    CHECK(live(session) == 2);
  }
  CHECK(live(session) == 1);
  // A move changes the owner, and no registration.
  jitsym_id id = first.id();
  Code second(std::move(first));
  CHECK(!first && second.id() == id && live(session) == 1);
  Code third;
  CHECK_OK(third.add(session, described(0x7000002000, "third")));
  third = std::move(second);
  CHECK(third.id() == id && live(session) == 1);
  // It has other code then, or, if that is refused, none.
  CHECK_OK(third.add(session, described(0x7000003000, "another")));
  CHECK(third.id() != id && live(session) == 1);
  CHECK_STATUS(JITSYM_ERR_SIZE_ZERO, third.add(session, JITSYM_CODE(0x7000003000u, 0, "empty")));
  CHECK(!third && live(session) == 0);
  CHECK_OK(third.add(session, described(0x7000003000, "other")));
  CHECK(live(session) == 1);
  CHECK(named_at(session, "7000003000") == "40 other;");
  // Where the code is, its name is.
  jitsym_move_target target = JITSYM_MOVE_TARGET(0x7000004000u);
  target.bytes = bytes;
  CHECK_OK(third.relocate(target));
  CHECK(named_at(session, "7000004000") == "40 other;");
  CHECK_OK(third.remove());
  CHECK(!third && live(session) == 0);
  CHECK_OK(third.remove());
  // A container moves what it has when it grows.
  std::vector<Code> many;
  for (uint64_t i = 0; i < 100; i++) {
    many.emplace_back();
    CHECK_OK(many.back().add(session, described(0x7000010000 + 64 * i, ("many_" + std::to_string(i)).c_str())));
  }
  CHECK(live(session) == 100 && named_at(session, "7000010040") == "40 many_1;");
  CHECK_OK(jitsym_unregister(session.get(), many.back().release()));
  many.clear();
  CHECK(live(session) == 0);
}

// An object of a runtime that owns a registration.
class Function {
 public:
  jitsym_status name(const jitsym_cxx::Session &session, const char *name, const void *start, size_t size) {
    jitsym_code code = JITSYM_CODE(start, size, name);
    code.bytes = start;
    return code_.add(session, code);
  }

 private:
  jitsym_cxx::Code code_;  // unregistered when the function goes
};

}  // namespace

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  // Nothing is open: all is refused, and nothing is thrown.
  Session session;
  Code none;
  CHECK(!session);
  CHECK(none.add(session, described(0x7000000000, "none")) != JITSYM_OK && !none);
  CHECK_OK(session.close());
  CHECK_OK(session.open(Options().sinks(JITSYM_SINK_MAP | JITSYM_SINK_JITDUMP).flags(JITSYM_INIT_REMEMBER).directory(argv[1])));
  codes(session);
  Session moved(std::move(session));
  CHECK(!session && moved);
  session = std::move(moved);
  Code last;
  CHECK_OK(last.add(session, described(0x7000020000, "last")));
  CHECK(named_at(session, "7000020000") == "40 last;");
  CHECK_OK(last.remove());
  {
    Function function;
    CHECK_OK(function.name(session, "function", bytes, sizeof bytes));
    CHECK(live(session) == 1);
  }
  CHECK(live(session) == 0);
  CHECK_OK(session.close());
  CHECK(!session);
  std::puts("ok");
  return 0;
}
