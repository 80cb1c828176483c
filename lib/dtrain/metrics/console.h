// Prints log lines and, on a terminal, a status line that is redrawn in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::metrics {

/// A part of a progress line.
struct LinePart {
  std::string text;  ///< the part is omitted if empty
  /// In a narrow line, parts are dropped in descending order; 0 is dropped last.
  int drop_order = 0;
  /// Short form: if not empty, replaces `text` when even the parts with drop_order 0 do not fit.
  std::string brief = {};
};

/// Joins the parts with " | ", or with spaces if " | " does not fit in `room` characters. If spaces
/// do not fit either, drops whole parts, because a truncated number would mislead; of parts with
/// equal drop_order the last one first. Truncates a single remaining part that is too long.
[[nodiscard]] std::string fit_parts(std::vector<LinePart> parts, std::size_t room);

/// Wraps lines longer than `room` characters between words; continuation lines are indented to the
/// line's second column, or by two if it has none.
[[nodiscard]] std::string wrap_words(std::string_view text, std::size_t room);

/// Writes lines about the run to standard error and progress lines to standard output, so that
/// `dtrain ... | tee log` records the progress; on a terminal everything goes to standard error.
/// Lines that cannot be written are dropped, with one warning if standard output fails.
///
/// Threads: one.
class Console {
 public:
  struct Options {
    bool live = false;                ///< standard error is a terminal, or dtrun forwards it to one
    bool progress_to_output = false;  ///< not live, and standard output is no terminal
    /// Returns the terminal's width; if empty or 0, standard error is queried.
    std::function<std::int64_t()> columns{};
  };

  explicit Console(Options options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  [[nodiscard]] bool is_live() const { return options_.live; }
  /// Returns the terminal's current width in characters; unlimited if the output is no terminal.
  [[nodiscard]] std::size_t room() const;
  /// Prints one or more whole lines about the run, with '\n' between them.
  void print(std::string_view text);
  /// As print(), for progress lines.
  void print_progress(std::string_view text);
  /// Redraws the live status line; no-op if the output is no terminal.
  void show_progress(std::string_view text);

 private:
  [[nodiscard]] int print_to(int fd, std::string_view text);
  void clear_progress();

  Options options_;
  bool has_progress_ = false;
  bool has_warned_ = false;  // the warning of lost output was printed
};

}  // namespace dtrain::metrics
