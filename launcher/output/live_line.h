// Shows a live line at the bottom of the terminal of standard error.
#pragma once

#include <string>
#include <string_view>

namespace launcher {

/// Returns whether standard error is a terminal, that is, whether a live line is shown.
[[nodiscard]] bool error_is_terminal();
/// The width of the terminal of standard error; 80 if it is unknown.
[[nodiscard]] int terminal_columns();

/// One live line at the bottom of the terminal: it is cleared before any other line and drawn again
/// after it. The cursor stays at the start of the live line, so that the whole line can be cleared
/// even if a narrower window has wrapped it into several rows.
///
/// output: the bytes for the terminal, to which a function appends its own.
class LiveLine {
 public:
  [[nodiscard]] bool empty() const { return text_.empty(); }
  /// Clears the line, and replaces its text; empty: no line.
  void set(std::string_view text, std::string& output);
  /// Clears the line until the next draw(). No-op if it is not drawn.
  void clear(std::string& output);
  /// Draws the line, cut to the terminal's width. No-op if it is drawn or empty.
  void draw(std::string& output);
  /// Removes the line. Returns its text.
  [[nodiscard]] std::string take(std::string& output);

 private:
  std::string text_;
  bool is_drawn_ = false;
};

}  // namespace launcher
