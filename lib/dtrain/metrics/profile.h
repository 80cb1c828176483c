// Where the time of profiled steps went: RUN/profile/trace.json and a table for people.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/trace.h"
#include "dtrain/comm/call_ring.h"

namespace dtrain::metrics {

/// The calls of one process group, and its name for people.
struct GroupTrace {
  std::string label;
  comm::KeptCalls calls;
};

/// All that one rank has recorded.
struct RankTrace {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  std::string host;
  base::Clock::duration ahead{};        ///< of this rank's clock before that of rank 0
  base::Clock::time_point origin = {};  ///< time 0 of the file, on the clock of rank 0
  const base::Trace& spans;
  /// The same spans, when the device did their work; empty on a CPU.
  std::vector<base::TraceSpan> device_spans = {};
  std::vector<GroupTrace> groups = {};
};

/// Returns when the first span or call of this rank began, on the clock of rank 0.
[[nodiscard]] base::Clock::time_point begin_of(const RankTrace& rank);

/// Returns this rank's part of the file: JSON objects with commas between them. A rank is a process
/// of its own there; its spans are the first thread, what other threads did beside them the second,
/// its device's the third, and each group's collectives, sends to a peer and receives from one are
/// threads, too.
[[nodiscard]] std::string trace_events(const RankTrace& rank);

/// Returns the spans that have ended, at the times at which the device reached their marks. times:
/// of each mark.
[[nodiscard]] std::vector<base::TraceSpan> on_device(
    const base::Trace& trace, const std::vector<base::Clock::time_point>& times);

/// Writes the parts of all ranks as one file, whole or not at all.
///
/// Throws: Error{data} naming the file if it cannot be written.
void write_trace(const std::string& path, const std::vector<std::string>& parts);

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
