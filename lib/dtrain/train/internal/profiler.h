// Implements --profile: traces a few steps and writes RUN/profile/trace.json.
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

/// Records the spans of the training thread and the calls of all groups, beginning with the third
/// step of a launch; then writes the trace of all ranks and prints a table of the time by activity.
///
/// Collective: all members but the constructor and the destructor, over the world.
/// Throws:     what Work::wait throws; a file that cannot be written triggers a warning.
/// Threads:    the training thread.
class Profiler {
 public:
  /// `context` must outlive this.
  explicit Profiler(const TrainContext& context) : context_(context) {}
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Begins or ends the profile when due. Returns true if it did either; the time it took belongs
  /// to no step. done: finished steps of this launch; step: finished steps of the run.
  bool before_step(std::int64_t done, std::int64_t step);
  /// Ends a profile in progress after the launch's last step. Warns if none began, unless
  /// before_step() has warned.
  void finish(std::int64_t step);

 private:
  void warn_if_short(std::int64_t step);
  void begin();
  void end(std::int64_t step);
  /// Collective. Prints the table of all ranks; clock: as in time_table.
  void print_table(const metrics::PartTimes& own, std::string_view clock);
  void write(const std::vector<std::string>& parts, std::int64_t step) const;
  [[nodiscard]] std::vector<metrics::GroupTrace> take_calls() const;

  const TrainContext& context_;
  base::Clock::duration clock_offset_{};      // this rank's clock minus rank 0's
  std::optional<device::Timeline> timeline_;  // empty on a CPU
  std::optional<base::Trace> trace_;
  bool is_accounted_for_ = false;  // the profile began, or a warning said that it will be short
};

}  // namespace dtrain::train
