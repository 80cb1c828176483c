#include "dtrain/base/error.h"

#include <cstring>

namespace dtrain::base {

std::string_view name_of(ErrorKind kind) noexcept {
  struct Name {
    ErrorKind kind;
    std::string_view text;
  };
  static constexpr Name kNames[] = {
      {ErrorKind::usage, "usage"},
      {ErrorKind::data, "data"},
      {ErrorKind::comm, "comm"},
      {ErrorKind::timeout, "timeout"},
      {ErrorKind::checkpoint, "checkpoint"},
      {ErrorKind::numerics, "numerics"},
      {ErrorKind::memory, "memory"},
      {ErrorKind::interrupted, "interrupted"},
      {ErrorKind::rendezvous, "rendezvous"},
      {ErrorKind::port, "port"},
      {ErrorKind::spawn, "spawn"},
      {ErrorKind::device, "device"},
  };
  for (const Name& name : kNames) {
    if (name.kind == kind) return name.text;
  }
  return "internal";
}

void detail::check_failed(const char* condition, const char* file, int line,
                          const std::string& message) {
  const char* name = std::strrchr(file, '/');
  fail(ErrorKind::internal, "internal check failed: {} at {}:{}{}{}; please report this", condition,
       name != nullptr ? name + 1 : file, line, message.empty() ? "" : ": ", message);
}

}  // namespace dtrain::base
