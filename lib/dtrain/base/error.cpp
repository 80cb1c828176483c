#include "dtrain/base/error.h"

#include <cstring>

namespace dtrain::base {

std::string_view name_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::data:
      return "data";
    case ErrorKind::comm:
      return "comm";
    case ErrorKind::timeout:
      return "timeout";
    case ErrorKind::checkpoint:
      return "checkpoint";
    case ErrorKind::numerics:
      return "numerics";
    case ErrorKind::memory:
      return "memory";
    case ErrorKind::interrupted:
      return "interrupted";
    case ErrorKind::rendezvous:
      return "rendezvous";
    case ErrorKind::port:
      return "port";
    case ErrorKind::spawn:
      return "spawn";
    case ErrorKind::device:
      return "device";
    case ErrorKind::internal:
      return "internal";
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
