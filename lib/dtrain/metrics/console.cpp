#include "dtrain/metrics/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace dtrain::metrics {
namespace {

// Erases downwards from the start of the live line, where the cursor waits: a window that became
// narrower has broken that line into several rows.
constexpr std::string_view kClearLine = "\r\x1b[J";

// A reader that went away or a full disk must not end the training (SIGPIPE is ignored:
// base/process.h). Returns 0, or the errno.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

Console::Console(Options options) : options_(std::move(options)) {}

Console::~Console() { clear_progress(); }

// Asked at each line, since people resize windows.
std::size_t Console::room() const {
  constexpr std::size_t kUsual = 80;
  if (!options_.live) return std::numeric_limits<std::size_t>::max();
  const std::int64_t told = options_.columns ? options_.columns() : 0;
  if (told > 0) return static_cast<std::size_t>(told) - 1;
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return (is_known ? size.ws_col : kUsual) - 1;
}

void Console::print(std::string_view text) { (void)print_to(STDERR_FILENO, text); }

void Console::print_progress(std::string_view text) {
  const int reason = print_to(options_.progress_to_output ? STDOUT_FILENO : STDERR_FILENO, text);
  const bool is_lost = options_.progress_to_output && reason != 0 && reason != EPIPE;
  if (!is_lost || std::exchange(has_told_loss_, true)) return;
  print(fmt::format(
      "dtrain: warning: standard output cannot be written: {}; lines are dropped, training goes on",
      std::strerror(reason)));
}

int Console::print_to(int fd, std::string_view text) {
  clear_progress();
  return write_all(fd, std::string(text) + "\n");
}

void Console::show_progress(std::string_view text) {
  if (!options_.live) return;
  // Ends in a carriage return: dtrun knows a line to redraw by it.
  (void)write_all(STDERR_FILENO,
                  std::string(kClearLine) + std::string(text.substr(0, room())) + "\r");
  has_progress_ = true;
}

void Console::clear_progress() {
  if (!has_progress_) return;
  (void)write_all(STDERR_FILENO, std::string(kClearLine) + "\r");
  has_progress_ = false;
}

}  // namespace dtrain::metrics
