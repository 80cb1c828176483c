// Notices ranks that the others keep waiting for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/rank.h"

namespace launcher {

/// Compares how long the ranks wait for each other. Who waits least, while the others wait, is
/// late.
///
/// Threads: one.
class Stragglers {
 public:
  using Time = dtrain::base::Clock::time_point;

  /// To be called at each sign of life; looks at what the ranks said once a second.
  ///
  /// Returns: a line about the rank that was late in at least half of ten looks: by more than a
  /// tenth of a step, told once a minute at most; else nothing.
  [[nodiscard]] std::string look(const std::vector<Rank>& ranks, Time now);

 private:
  struct Account {
    std::int64_t step = -1;
    std::int64_t waited_us = 0;
  };
  struct Lateness {
    int looks = 0;          // in which it was late
    double seconds = 0;     // a step, over these looks
    double of_seconds = 0;  // a step took, over these looks
  };

  void compare(const std::vector<Rank>& ranks, double elapsed);
  [[nodiscard]] std::string conclude(Time now);

  Time last_look_;
  std::vector<Account> accounts_;  // at the last look
  std::vector<Lateness> late_;     // since the last conclusion
  int looks_ = 0;
  std::optional<Time> told_;
};

}  // namespace launcher
