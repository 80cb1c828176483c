#include "dtrain/base/error.h"

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

}  // namespace dtrain::base
