#include "launcher/output/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace launcher {
namespace {

constexpr std::string_view kClearLine = "\r\033[J";

/// The longest prefix that fits in `columns`, counted in UTF-8 characters.
std::string_view fitted(std::string_view text, std::size_t columns) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool begins_character = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
    if (begins_character && ++characters > columns) return text.substr(0, at);
  }
  return text;
}

}  // namespace

bool error_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void LiveLine::set(std::string_view text, std::string& output) {
  clear(output);
  text_ = text;
}

void LiveLine::clear(std::string& output) {
  if (!is_drawn_) return;
  output += kClearLine;
  is_drawn_ = false;
}

void LiveLine::draw(std::string& output) {
  if (is_drawn_ || text_.empty()) return;
  const auto width = static_cast<std::size_t>(terminal_columns());
  output.append(kClearLine).append(fitted(text_, width - 1)).append("\r");
  is_drawn_ = true;
}

std::string LiveLine::take(std::string& output) {
  clear(output);
  return std::exchange(text_, {});
}

}  // namespace launcher
