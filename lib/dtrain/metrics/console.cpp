#include "dtrain/metrics/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dtrain::metrics {
namespace {

constexpr std::string_view kClearLine = "\x1b[2K";

// A reader that went away must not end the training (SIGPIPE is ignored: base/standard_streams).
void write_all(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

// Asked at each line, since people resize windows.
std::size_t terminal_columns(std::int64_t told) {
  constexpr std::size_t kUsual = 80;
  if (told > 0) return static_cast<std::size_t>(told);
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

// The text in less than `columns`: without its dividers where it is too long, then cut.
std::string fitted(std::string_view text, std::size_t columns) {
  constexpr std::string_view kDivider = " | ";
  if (text.size() < columns) return std::string(text);
  std::string line;
  for (auto at = text.find(kDivider); at != text.npos; at = text.find(kDivider)) {
    line.append(text.substr(0, at)).push_back(' ');
    text.remove_prefix(at + kDivider.size());
  }
  line.append(text);
  line.resize(std::min(line.size(), columns - 1));
  return line;
}

}  // namespace

Console::~Console() { clear_progress(); }

void Console::print(std::string_view text) {
  clear_progress();
  write_all(std::string(text) + "\n");
}

void Console::show_progress(std::string_view text) {
  if (!options_.live) return;
  // Ends in a carriage return: the cursor waits at the line's start, and dtrun knows a line to
  // redraw by it.
  write_all(std::string(kClearLine) + fitted(text, terminal_columns(options_.columns)) + "\r");
  has_progress_ = true;
}

void Console::clear_progress() {
  if (!has_progress_) return;
  write_all(std::string(kClearLine) + "\r");
  has_progress_ = false;
}

}  // namespace dtrain::metrics
