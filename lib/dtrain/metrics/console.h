// The view of a run for people: whole lines, and on a terminal one line that is redrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

namespace dtrain::metrics {

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
