// What a person sees while training: whole lines, and on a terminal one line that is redrawn.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrain::metrics {

/// Writes to standard error, which leaves standard output to results.
///
/// Threads: one.
class Console {
 public:
  struct Options {
    bool live = false;         ///< standard error is a terminal, or dtrun shows it on one
    std::int64_t columns = 0;  ///< of the terminal; 0: asked of standard error at each line
  };

  explicit Console(Options options) : options_(options) {}
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  [[nodiscard]] bool is_live() const { return options_.live; }
  /// One or more whole lines, '\n' between them.
  void print(std::string_view text);
  /// Redraws the live line; on anything but a terminal nothing happens.
  void show_progress(std::string_view text);

 private:
  void clear_progress();

  Options options_;
  bool has_progress_ = false;
};

}  // namespace dtrain::metrics
