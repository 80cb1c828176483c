#include "dtrain/metrics/console.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace dtrain::metrics {
namespace {

// Parts with this drop order or a higher one are dropped before the dividers are.
constexpr int kDroppedFirst = 6;

std::string joined(const std::vector<LinePart>& parts, std::string_view divider) {
  std::string line;
  for (const LinePart& part : parts) line.append(line.empty() ? "" : divider).append(part.text);
  return line;
}

// The start of the second column, as in "mesh            pp 1"; 2 if there is only one column.
std::size_t indent_of(std::string_view line, std::size_t room) {
  const std::size_t gap = line.find("  ");
  const std::size_t column = gap == line.npos ? line.npos : line.find_first_not_of(' ', gap);
  return column != line.npos && column < room / 2 ? column : 2;
}

std::string wrap_line(std::string line, std::size_t room) {
  constexpr std::size_t kNarrowest = 20;
  if (room < kNarrowest) return line;
  const std::size_t indent = indent_of(line, room);
  std::string wrapped;
  while (line.size() > room) {
    std::size_t space = line.rfind(' ', room);
    if (space == line.npos || space <= indent) space = line.find(' ', room);  // a long word
    if (space == line.npos) break;
    wrapped += line.substr(0, space) + '\n';
    line.replace(0, space + 1, indent, ' ');
  }
  return wrapped + line;
}

// Fits parts that all have drop order 0.
std::string fit_last_parts(std::vector<LinePart> parts, std::size_t room) {
  for (LinePart& part : parts) {
    if (joined(parts, " ").size() > room && !part.brief.empty()) part.text = part.brief;
  }
  while (parts.size() > 1 && joined(parts, " ").size() > room) parts.pop_back();
  return joined(parts, " ").substr(0, room);
}

// Erases downwards from the start of the live line, where the cursor is: a window that became
// narrower has wrapped that line into several rows.
constexpr std::string_view kClearLine = "\r\x1b[J";

// Returns 0 or the errno: neither a closed pipe nor a full disk may end the training. SIGPIPE is
// ignored (base/host/process.h).
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

std::string wrap_words(std::string_view text, std::size_t room) {
  std::string wrapped;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    wrapped += wrap_line(std::string(text.substr(begin, end - begin)), room);
    if (end < text.size()) wrapped += '\n';
    begin = end + 1;
  }
  return wrapped;
}

std::string fit_parts(std::vector<LinePart> parts, std::size_t room) {
  std::erase_if(parts, [](const LinePart& part) { return part.text.empty(); });
  for (;;) {
    const auto next = std::max_element(
        parts.begin(), parts.end(),
        [](const LinePart& a, const LinePart& b) { return a.drop_order < b.drop_order; });
    const int order = next == parts.end() ? 0 : next->drop_order;
    const std::string line = joined(parts, " | ");
    if (line.size() <= room) return line;
    if (order < kDroppedFirst) {
      const std::string narrow = joined(parts, " ");
      if (narrow.size() <= room) return narrow;
      if (order == 0) return fit_last_parts(std::move(parts), room);
    }
    parts.erase(next);
  }
}

Console::Console(Options options) : options_(std::move(options)) {}

Console::~Console() { clear_progress(); }

// Queried for each line, since people resize windows.
std::size_t Console::room() const {
  constexpr std::size_t kDefault = 80;
  if (!options_.live) return std::numeric_limits<std::size_t>::max();
  const std::int64_t known = options_.columns ? options_.columns() : 0;
  if (known > 0) return static_cast<std::size_t>(known) - 1;
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0;
  return (is_known ? size.ws_col : kDefault) - 1;
}

void Console::print(std::string_view text) { (void)print_to(STDERR_FILENO, text); }

void Console::print_progress(std::string_view text) {
  const int reason = print_to(options_.progress_to_output ? STDOUT_FILENO : STDERR_FILENO, text);
  const bool is_lost = options_.progress_to_output && reason != 0 && reason != EPIPE;
  if (!is_lost || std::exchange(has_warned_, true)) return;
  print(
      fmt::format("dtrain: warning: standard output cannot be written: {}; lines are dropped, "
                  "training continues",
                  std::strerror(reason)));
}

int Console::print_to(int fd, std::string_view text) {
  clear_progress();
  return write_all(fd, std::string(text) + "\n");
}

void Console::show_progress(std::string_view text) {
  if (!options_.live) return;
  // The trailing carriage return tells dtrun that this line is redrawn.
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
