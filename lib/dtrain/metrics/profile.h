// Profiles steps: RUN/profile/trace.json and a table of the time by activity.
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

/// Recorded calls of one process group, and its display name.
struct GroupTrace {
  std::string label;
  comm::KeptCalls calls;
};

/// The recorded trace of one rank.
struct RankTrace {
  std::int64_t rank = 0;
  std::int64_t num_ranks = 1;
  std::string host;
  base::Clock::duration clock_offset{};  ///< this rank's clock minus rank 0's
  base::Clock::time_point origin = {};   ///< time 0 of the file, on rank 0's clock
  const base::Trace& spans;
  /// The same spans at the times when the device executed them; empty on a CPU.
  std::vector<base::TraceSpan> device_spans = {};
  std::vector<GroupTrace> groups = {};
};

/// Returns the start of this rank's first span or call, on rank 0's clock.
[[nodiscard]] base::Clock::time_point start_of(const RankTrace& rank);

/// Returns this rank's part of the trace file: JSON objects with commas between them. In the trace
/// each rank is a process with these threads: its training spans, its background spans, its
/// device's spans, and, for each group, the collectives, the sends to each peer and the receives
/// from each peer.
[[nodiscard]] std::string trace_events(const RankTrace& rank);

/// Returns the spans with the times at which the device executed them. times: when the device
/// reached each mark of the trace.
[[nodiscard]] std::vector<base::TraceSpan> device_spans(
    const base::Trace& trace, const std::vector<base::Clock::time_point>& times);

/// Writes the parts of all ranks as one file, atomically.
///
/// Throws: Error{data} naming the file if it cannot be written.
void write_trace(const std::string& path, const std::vector<std::string>& parts);

/// The time of one rank by activity. Within steps, time counts for the innermost span; outside of
/// steps, an outermost span counts in full.
///
/// Units: seconds.
struct PartTimes {
  std::int64_t steps = 0;
  double step_seconds = 0;  ///< time in all steps
  std::array<double, base::kNumTraceParts> seconds = {};

  /// The time in steps outside the listed activities.
  [[nodiscard]] double rest() const;
  [[nodiscard]] double& of(base::TracePart part) { return seconds[static_cast<std::size_t>(part)]; }
  [[nodiscard]] double of(base::TracePart part) const {
    return seconds[static_cast<std::size_t>(part)];
  }
};

/// Sums the times. spans: all spans of one trace.
[[nodiscard]] PartTimes part_times(const std::vector<base::TraceSpan>& spans);

/// Serializes the times for another rank.
[[nodiscard]] std::string to_text(const PartTimes& times);
[[nodiscard]] PartTimes times_from(const std::string& text);

/// Formats the table for people: the mean over ranks, and the fastest and slowest rank if they fit
/// in lines of `room` characters. clock: names the clock of the times; empty for the host's.
[[nodiscard]] std::string time_table(const std::vector<PartTimes>& ranks,
                                     std::string_view clock = {},
                                     std::size_t room = std::string::npos);

}  // namespace dtrain::metrics
