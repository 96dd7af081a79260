/*
 * libjitsym in C++ (C++11 and later): sessions and registrations that end with their scope. This header needs only jitsym.h.
 *
 *   jitsym_cxx::Session session;
 *   session.open(jitsym_cxx::Options().sinks(JITSYM_SINK_MAP));
 *   jitsym_cxx::Code code;
 *   code.add(session, JITSYM_CODE(entry, length, "my_function"));
 *
 * Nothing is thrown: functions return the jitsym_status of the call that they make. A session that could not be opened, or that was
 * moved from, is NULL: each call with it is refused, and harmless. Objects can be moved, but not copied. The rules of jitsym.h for
 * threads, forks and exits apply. Only one thread at a time may use an object.
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

/* The options of a session. Options without a function are fields of `raw`. */
class Options {
 public:
  jitsym_options raw = JITSYM_OPTIONS;

  /* `JITSYM_SINK_*` bits. */
  Options &sinks(uint32_t bits) noexcept {
    raw.sinks = bits;
    return *this;
  }
  /* Adds `JITSYM_INIT_*` bits. */
  Options &flags(uint32_t bits) noexcept {
    raw.flags |= bits;
    return *this;
  }
  /* The directory of all files. The text has to stay until `open` returns. */
  Options &directory(const char *path) noexcept {
    raw.map_dir = raw.jitdump_dir = path;
    return *this;
  }
};

/* A session, which is closed at the end of its scope. */
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

  /* Closes the object's session, if any, and opens another session. */
  jitsym_status open(const Options &options = Options()) noexcept {
    close();
    return jitsym_init(&options.raw, &handle_);
  }
  /* Registered code stays registered as long as another session is open. */
  jitsym_status close() noexcept { return handle_ == nullptr ? JITSYM_OK : jitsym_close(release()); }
  jitsym_status flush(uint32_t timeout_ms) noexcept { return jitsym_flush(handle_, timeout_ms); }
  jitsym_status stats(jitsym_stats &out) noexcept {
    out.struct_size = sizeof out;
    return jitsym_get_stats(handle_, &out);
  }

  /* The handle, for calls in C. */
  jitsym *get() const noexcept { return handle_; }
  /* Gives up the session, which the caller closes. */
  jitsym *release() noexcept {
    jitsym *handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  jitsym *handle_ = nullptr;
};

/* Registered code, which is unregistered at the end of its scope. The scope has to end before the memory gets other code. The
 * session has to stay open until the scope ends, even if the session's object is moved. */
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

  /* Unregisters the object's code, if any, and registers other code. If that fails, the object has no code. */
  jitsym_status add(const Session &session, const jitsym_code &code) noexcept {
    remove();
    session_ = session.get();
    return jitsym_register(session_, &code, &id_);
  }
  /* Reports that the code now runs at another address (`jitsym_move`). */
  jitsym_status relocate(const jitsym_move_target &target) noexcept {
    return id_ == 0 ? JITSYM_OK : jitsym_move(session_, id_, &target);
  }
  /* Unregisters the code, if any. */
  jitsym_status remove() noexcept {
    jitsym_id id = release();
    return id == 0 ? JITSYM_OK : jitsym_unregister(session_, id);
  }

  /* 0 if no code is registered, for example because no sink runs. */
  jitsym_id id() const noexcept { return id_; }
  /* Gives up the code, which stays registered. */
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
