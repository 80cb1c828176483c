// Where the time of profiled steps went, added up over spans and compared over ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/trace.h"

namespace dtrain::metrics {

/// The time of one rank by part: within steps each moment counts once, for the innermost span;
/// what lies beside the steps counts whole, for its outermost span.
///
/// Units: seconds.
struct PartTimes {
  std::int64_t steps = 0;
  double step_seconds = 0;  ///< of all steps
  std::array<double, base::kNumTraceParts> seconds = {};

  /// The time in steps that no part claims.
  [[nodiscard]] double rest() const;
  [[nodiscard]] double& of(base::TracePart part) { return seconds[static_cast<std::size_t>(part)]; }
  [[nodiscard]] double of(base::TracePart part) const {
    return seconds[static_cast<std::size_t>(part)];
  }
};

/// spans: of one trace, all of them.
[[nodiscard]] PartTimes part_times(const std::vector<base::TraceSpan>& spans);

/// As text, for another rank.
[[nodiscard]] std::string to_text(const PartTimes& times);
[[nodiscard]] PartTimes times_from(const std::string& text);

/// The table for people: the mean over ranks, and the ranks with the least and the most if lines of
/// `room` characters can hold them. clock: whose the times are, where that is not the host.
[[nodiscard]] std::string time_table(const std::vector<PartTimes>& ranks,
                                     std::string_view clock = {},
                                     std::size_t room = std::string::npos);

}  // namespace dtrain::metrics
