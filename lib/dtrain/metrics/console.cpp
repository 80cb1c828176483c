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

// Parts of a higher rank go before the dividers do.
constexpr int kBelowDividers = 6;

std::string joined(const std::vector<LinePart>& parts, std::string_view divider) {
  std::string line;
  for (const LinePart& part : parts) line.append(line.empty() ? "" : divider).append(part.text);
  return line;
}

// Where the second column of "mesh            pp 1" begins; 2 where a line has one.
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

// Of parts that all have rank 0.
std::string fit_last_parts(std::vector<LinePart> parts, std::size_t room) {
  for (LinePart& part : parts) {
    if (joined(parts, " ").size() > room && !part.brief.empty()) part.text = part.brief;
  }
  while (parts.size() > 1 && joined(parts, " ").size() > room) parts.pop_back();
  return joined(parts, " ").substr(0, room);
}

// Erases downwards from the start of the live line, where the cursor waits: a window that became
// narrower has broken that line into several rows.
constexpr std::string_view kClearLine = "\r\x1b[J";

// A reader that went away or a full disk must not end the training (SIGPIPE is ignored:
// base/host/process.h). Returns 0, or the errno.
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
    const auto next =
        std::max_element(parts.begin(), parts.end(),
                         [](const LinePart& a, const LinePart& b) { return a.rank < b.rank; });
    const int rank = next == parts.end() ? 0 : next->rank;
    const std::string line = joined(parts, " | ");
    if (line.size() <= room) return line;
    if (rank < kBelowDividers) {
      const std::string narrow = joined(parts, " ");
      if (narrow.size() <= room) return narrow;
      if (rank == 0) return fit_last_parts(std::move(parts), room);
    }
    parts.erase(next);
  }
}

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
