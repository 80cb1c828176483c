#include "fitted_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>

#include "ranks.h"

namespace dtrain::app {
namespace {

constexpr std::size_t kNone = std::string_view::npos;
constexpr std::size_t kFewestColumns = 40;  // with less, texts beside flags have no room

std::size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

// Where the text of a line begins: after the gap that follows a flag or name, if it has one.
std::size_t text_column(std::string_view line) {
  constexpr std::size_t kAfterFlags = 28;  // a long flag leaves one space before it
  const std::size_t indent = indent_of(line);
  if (const std::size_t gap = line.find("  ", indent); gap != kNone) {
    return std::min(line.find_first_not_of(' ', gap), line.size());
  }
  const bool is_flag = line.substr(indent).starts_with("--");
  const bool has_text = is_flag && line.size() > kAfterFlags && line[kAfterFlags - 1] == ' ';
  return has_text ? kAfterFlags : indent;
}

// Moves what fits from the beginning of `line` to `result`; keeps the rest, if any, in `line`.
void move_line(std::string& line, std::size_t text, std::size_t columns, std::string& result) {
  std::size_t end = line.size();
  if (end > columns) {
    end = line.rfind(' ', columns);
    if (end == kNone || end <= text) end = std::min(line.find(' ', text), line.size());
  }
  result += line.substr(0, end) + '\n';
  line.erase(0, std::min(end + 1, line.size()));
  if (!line.empty()) line.insert(0, text, ' ');
}

// Width of the terminal behind a descriptor.
std::size_t columns_of(int descriptor) {
  constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  winsize size{};
  const bool is_known = ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? std::max<std::size_t>(size.ws_col, kFewestColumns) : kUnlimited;
}

}  // namespace

std::string fitted_text(std::string_view text, std::size_t columns) {
  std::string result;
  std::string rest;  // of the lines so far, indented
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool flows_on = !rest.empty() && indent_of(line) == column && line.size() > column;
    if (flows_on) {
      rest += ' ' + std::string(line.substr(column));
    } else {
      while (!rest.empty()) move_line(rest, column, columns, result);
      rest = line;
      column = text_column(line);
    }
    const bool is_whole = !flows_on && rest.size() <= columns;
    while (rest.size() > columns) move_line(rest, column, columns, result);
    if (is_whole) move_line(rest, column, columns, result);
  }
  while (!rest.empty()) move_line(rest, column, columns, result);
  return result;
}

void print_help(std::string_view text) { print_once(fitted_text(text, columns_of(STDOUT_FILENO))); }

void print_usage(std::string_view text) {
  std::cerr << fitted_text(text, columns_of(STDERR_FILENO)) << std::flush;
}

}  // namespace dtrain::app
