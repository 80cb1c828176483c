#include "launcher/pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"

namespace launcher {

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn, "cannot make a pipe: {}",
                       std::strerror(errno));
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {dtrain::base::Descriptor(ends[0]), dtrain::base::Descriptor(ends[1])};
}

bool is_readable_within(const dtrain::base::Descriptor& reader, std::chrono::milliseconds limit) {
  pollfd waited{.fd = reader.get(), .events = POLLIN, .revents = 0};
  return ::poll(&waited, 1, static_cast<int>(limit.count())) > 0;
}

}  // namespace launcher
