// A line on the terminal that shows how far long work has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/base/clock.h"

namespace dtrain::app {

/// A bar on standard error, drawn again at most ten times a second, where that is a terminal;
/// elsewhere nothing. Its line is empty again at the end.
class ProgressBar {
 public:
  ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  /// note: what stands behind the speed.
  void show(std::int64_t bytes, std::int64_t total_bytes, std::string_view note);

 private:
  bool is_on_terminal_;
  bool is_drawn_ = false;
  base::Clock::time_point begin_;
  double last_ = 0;  // seconds after begin_
};

/// State of a progress bar.
struct Progress {
  std::int64_t bytes = 0;
  std::int64_t total_bytes = 0;
  double seconds = 0;
  std::string_view note;
};

/// Returns the bar's line, "[#####     ]  50 %  100 of 200 MB  20 MB/s  5.0 s left  NOTE", cut to
/// `columns` by dropping the note, then the speed, the bytes and the bar.
[[nodiscard]] std::string progress_text(const Progress& progress, std::size_t columns);

}  // namespace dtrain::app
