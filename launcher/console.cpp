#include "launcher/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace launcher {
namespace {

constexpr std::string_view kClearLine = "\r\033[K";
constexpr std::size_t kPipePiece = 4096;  // PIPE_BUF: what a ready pipe takes at least
constexpr std::size_t kTerminalPiece = 512;
constexpr std::size_t kFilePiece = std::size_t{1} << 20;

bool same_terminal(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::isatty(a) == 1 && ::isatty(b) == 1 && ::fstat(a, &first) == 0 &&
         ::fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
}

std::size_t piece_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return kFilePiece;
  return ::isatty(fd) == 1 ? kTerminalPiece : kPipePiece;
}

}  // namespace

Console::Sink::Sink(int descriptor) : fd(descriptor), piece(piece_of(descriptor)) {}

void Console::Sink::flush() {
  std::size_t done = 0;
  while (!closed && done < pending.size()) {
    pollfd ready{fd, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) break;
    const ssize_t written =
        ::write(fd, pending.data() + done, std::min(piece, pending.size() - done));
    if (written >= 0) {
      done += static_cast<std::size_t>(written);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      closed = true;
    }
  }
  if (closed) {
    pending.clear();
  } else {
    pending.erase(0, done);
  }
}

Console::Console()
    : output_(STDOUT_FILENO),
      error_(STDERR_FILENO),
      terminal_(::isatty(STDERR_FILENO) == 1),
      one_terminal_(same_terminal(STDOUT_FILENO, STDERR_FILENO)) {}

int Console::columns() const {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void Console::hide_live() {
  if (!live_shown_) return;
  error_.pending += kClearLine;
  live_shown_ = false;
}

void Console::line(Stream stream, std::string_view prefix, std::string_view text) {
  Sink& sink = sink_of(stream);
  if (sink.closed) return;
  if (&sink == &error_) hide_live();
  sink.pending.append(prefix).append(text).append("\n");
}

void Console::live(std::string_view text) {
  hide_live();
  live_ = text;
}

void Console::commit_live(std::string_view prefix) {
  if (live_.empty()) return;
  const std::string text = std::move(live_);
  live_.clear();
  line(Stream::error, prefix, text);
}

void Console::flush() {
  if (!live_.empty() && !live_shown_) {
    error_.pending.append(kClearLine).append(live_);
    live_shown_ = true;
  }
  output_.flush();
  error_.flush();
}

}  // namespace launcher
