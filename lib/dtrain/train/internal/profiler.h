// --profile: traces some steps of this rank and writes the trace of all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/trace.h"
#include "dtrain/config/config.h"
#include "dtrain/device/synchronize.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/metrics/profile.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/train/internal/train_context.h"

namespace dtrain::train {

/// Keeps the spans of the thread that makes the steps, and the calls of all groups, from the third
/// step of a start on; then writes RUN/profile/trace.json and prints where the time went.
///
/// Collective: all members but the constructor and the destructor, over the world.
/// Throws:     what Work::wait throws; a file that cannot be written is a warning.
/// Threads:    one, which makes the steps.
class Profiler {
 public:
  /// `context` must outlive this.
  explicit Profiler(const TrainContext& context) : context_(context) {}
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Begins or ends the profile where it is time to. done: steps of this start; step: of the run.
  /// Returns whether that took time which is no part of a step.
  bool before_step(std::int64_t done, std::int64_t step);
  /// The launch has made its last step: ends a profile under way. One that never began is told,
  /// unless the start has told it.
  void finish(std::int64_t step);

 private:
  void warn_if_short(std::int64_t step);
  void begin();
  void end(std::int64_t step);
  /// Collective. Prints the table of all ranks; clock: as time_table.
  void tell(const metrics::PartTimes& own, std::string_view clock);
  void write(const std::vector<std::string>& parts, std::int64_t step) const;
  [[nodiscard]] std::vector<metrics::GroupTrace> take_calls() const;

  const TrainContext& context_;
  base::Clock::duration ahead_{};             // of rank 0's clock
  std::optional<device::Timeline> timeline_;  // of a device that is not a CPU
  std::optional<base::Trace> trace_;
  bool is_settled_ = false;  // it began, or a warning said that it would not bring all
};

}  // namespace dtrain::train
