#include "dtrain/base/io/blocking_read.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace dtrain::base {

// A blocking read would restart after a stop signal, so poll waits instead, with a timeout in case
// the signal arrived just before.
ssize_t blocking_read(int descriptor, std::span<char> to, const std::function<void()>& on_wait) {
  constexpr int kMilliseconds = 200;
  for (;;) {
    if (on_wait) on_wait();
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kMilliseconds) <= 0) continue;
    const ssize_t count = ::read(descriptor, to.data(), to.size());
    if (count >= 0 || (errno != EINTR && errno != EAGAIN)) return count;
  }
}

}  // namespace dtrain::base
