#include "dtrain/metrics/console.h"

#include <unistd.h>

#include <algorithm>

namespace dtrain::metrics {
namespace {

constexpr std::string_view kClearLine = "\x1b[2K";

// A reader that went away must not end the training.
void write_all(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
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
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(options_.columns - 1, 20));
  write_all(std::string(kClearLine) + std::string(text.substr(0, width)) + "\r");
  has_progress_ = true;
}

void Console::clear_progress() {
  if (!has_progress_) return;
  write_all(std::string(kClearLine) + "\r");
  has_progress_ = false;
}

}  // namespace dtrain::metrics
