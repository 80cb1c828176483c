// The view of a run for people: whole lines, and on a terminal one line that is redrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::metrics {

struct LinePart {
  std::string text;  ///< empty: not there
  /// If the line is too narrow, parts are dropped in descending order of rank, 0 last.
  int rank = 0;
  std::string brief = {};  ///< replaces `text` if the parts of rank 0 do not fit; or empty
};

/// Joins the parts with " | ", or with spaces if only that fits in `room` characters. Drops whole
/// parts that still do not fit, those of rank 0 from the back, since half a number misleads. Cuts
/// what is then too long.
[[nodiscard]] std::string fit_parts(std::vector<LinePart> parts, std::size_t room);

/// `text` with its lines broken between words where they are longer than `room` characters; what
/// follows is indented to the line's second column, or by two where it has none.
[[nodiscard]] std::string wrap_words(std::string_view text, std::size_t room);

/// Writes lines about the run to standard error and its progress to standard output, so that
/// `dtrain ... | tee log` keeps it; on a terminal everything goes to standard error. Lines that
/// cannot be written are dropped; one warning tells of a standard output that is full.
///
/// Threads: one.
class Console {
 public:
  struct Options {
    bool live = false;                ///< standard error is a terminal, or dtrun shows it on one
    bool progress_to_output = false;  ///< standard output is no terminal, and not live
    std::function<std::int64_t()> columns{};  ///< of the terminal; none or 0: asks standard error
  };

  explicit Console(Options options);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  [[nodiscard]] bool is_live() const { return options_.live; }
  /// Returns the width of the terminal as it is now; unlimited on anything else.
  [[nodiscard]] std::size_t room() const;
  /// One or more whole lines about the run, '\n' between them.
  void print(std::string_view text);
  /// As print, of its progress.
  void print_progress(std::string_view text);
  /// Redraws the live line; on anything but a terminal nothing happens.
  void show_progress(std::string_view text);

 private:
  [[nodiscard]] int print_to(int fd, std::string_view text);
  void clear_progress();

  Options options_;
  bool has_progress_ = false;
  bool has_told_loss_ = false;
};

}  // namespace dtrain::metrics
