/*
 * libjitsym in C++ (C++11 and later): sessions and registrations that end with their scope. A header alone, over jitsym.h.
 *
 *   jitsym_cxx::Session session;
 *   session.open(jitsym_cxx::Options().sinks(JITSYM_SINK_MAP));
 *   jitsym_cxx::Code code;
 *   code.add(session, JITSYM_CODE(entry, length, "my_function"));
 *
 * Nothing is thrown: calls return the jitsym_status of the call of jitsym.h that they make. A session that could not be opened, and one
 * that was moved from, is NULL: each call with it is refused, and harmless. Objects can be moved, and cannot be copied. What holds for
 * threads, forks and exits in jitsym.h holds here. One object is for one thread at a time.
 *
 * For machines that may lack the library, include jitsym_dl.h first.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef JITSYM_HPP
#define JITSYM_HPP

#include "jitsym.h"

/* Not `jitsym`, which is a type of jitsym.h. */
namespace jitsym_cxx {

/* The options of a session: those that have no function here are fields of `raw`. */
class Options {
 public:
  jitsym_options raw = JITSYM_OPTIONS;

  /* `JITSYM_SINK_*` bits. */
  Options &sinks(uint32_t bits) noexcept {
    raw.sinks = bits;
    return *this;
  }
  /* `JITSYM_INIT_*` bits, beside those that are set. */
  Options &flags(uint32_t bits) noexcept {
    raw.flags |= bits;
    return *this;
  }
  /* The directory of all files, as long as `open` runs. */
  Options &directory(const char *path) noexcept {
    raw.map_dir = raw.jitdump_dir = path;
    return *this;
  }
};

/* A session. It is closed at the end of its scope. */
class Session {
 public:
  Session() noexcept = default;
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;
  Session(Session &&other) noexcept : handle_(other.release()) {}
  Session &operator=(Session &&other) noexcept {
    if (this != &other) {
      close();
      handle_ = other.release();
    }
    return *this;
  }
  ~Session() { close(); }

  /* Closes the session that it has, and opens another one. */
  jitsym_status open(const Options &options = Options()) noexcept {
    close();
    return jitsym_init(&options.raw, &handle_);
  }
  /* Code that is registered stays so. */
  jitsym_status close() noexcept { return handle_ == nullptr ? JITSYM_OK : jitsym_close(release()); }
  jitsym_status flush(uint32_t timeout_ms) noexcept { return jitsym_flush(handle_, timeout_ms); }
  jitsym_status stats(jitsym_stats &out) noexcept {
    out.struct_size = sizeof out;
    return jitsym_get_stats(handle_, &out);
  }

  /* For all calls in C. */
  jitsym *get() const noexcept { return handle_; }
  /* The caller closes it. */
  jitsym *release() noexcept {
    jitsym *handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  jitsym *handle_ = nullptr;
};

/* Code that is registered. It is unregistered at the end of its scope, which comes before its memory has other code. The session is
 * to be open until then, wherever its object is moved to. */
class Code {
 public:
  Code() noexcept = default;
  Code(const Code &) = delete;
  Code &operator=(const Code &) = delete;
  Code(Code &&other) noexcept : session_(other.session_), id_(other.release()) {}
  Code &operator=(Code &&other) noexcept {
    if (this != &other) {
      remove();
      session_ = other.session_;
      id_ = other.release();
    }
    return *this;
  }
  ~Code() { remove(); }

  /* Unregisters the code that it has, if any, and registers other code: if that is refused, the object has none. */
  jitsym_status add(const Session &session, const jitsym_code &code) noexcept {
    remove();
    session_ = session.get();
    return jitsym_register(session_, &code, &id_);
  }
  /* The code is at another place now (`jitsym_move`). */
  jitsym_status relocate(const jitsym_move_target &target) noexcept {
    return id_ == 0 ? JITSYM_OK : jitsym_move(session_, id_, &target);
  }
  /* Unregisters it. */
  jitsym_status remove() noexcept {
    jitsym_id id = release();
    return id == 0 ? JITSYM_OK : jitsym_unregister(session_, id);
  }

  /* 0 where nothing is registered: also if no sink runs. */
  jitsym_id id() const noexcept { return id_; }
  /* The code stays registered. */
  jitsym_id release() noexcept {
    jitsym_id id = id_;
    id_ = 0;
    return id;
  }
  explicit operator bool() const noexcept { return id_ != 0; }

 private:
  jitsym *session_ = nullptr;
  jitsym_id id_ = 0;
};

}  // namespace jitsym_cxx

#endif  // JITSYM_HPP
