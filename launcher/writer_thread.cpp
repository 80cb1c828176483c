#include "launcher/writer_thread.h"

#include <fcntl.h>
#include <linux/limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"

namespace launcher {

void start_writer_thread(std::function<void()> body) {
  try {
    std::thread(std::move(body)).detach();
  } catch (const std::system_error& error) {
    dtrain::base::fail(dtrain::base::ErrorKind::spawn,
                       "cannot start a thread: {}; raise the limit (ulimit -u)", error.what());
  }
}

int write_piece(int fd, std::string_view& rest, Pieces pieces) {
  constexpr std::size_t kPiece = std::size_t{1} << 16;
  std::size_t size = std::min(kPiece, rest.size());
  if (pieces == Pieces::atomic && size > PIPE_BUF) {
    const auto end = rest.substr(0, PIPE_BUF).rfind('\n');
    size = end == std::string_view::npos ? PIPE_BUF : end + 1;
  }
  const ssize_t written = ::write(fd, rest.data(), size);
  if (written >= 0) {
    rest.remove_prefix(static_cast<std::size_t>(written));
    return 0;
  }
  if (errno == EAGAIN) {  // another program has made it non-blocking
    pollfd ready{fd, POLLOUT, 0};
    ::poll(&ready, 1, -1);
    return 0;
  }
  return errno == EINTR ? 0 : errno;
}

Waker::Waker(int eventfd) : fd_(::fcntl(eventfd, F_DUPFD_CLOEXEC, 3)) {}

void Waker::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof(one));
}

}  // namespace launcher
