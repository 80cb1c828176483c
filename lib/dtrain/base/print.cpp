#include "dtrain/base/print.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::base {

bool print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) return false;
    if (written < 0) {
      fail(ErrorKind::usage, "cannot write to standard output: {}", std::strerror(errno));
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace dtrain::base
