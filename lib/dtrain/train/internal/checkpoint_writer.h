// Writes a run's checkpoints one at a time, reports each, and keeps the best one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/config/config.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/latest_checkpoint.h"

namespace dtrain::train {

class StateCheck;

/// Options of a CheckpointWriter.
struct CheckpointOptions {
  const config::Config& config;
  StateCheck& state_check;          ///< called before each save
  std::string run;                  ///< the job's name
  std::string data_fingerprint;     ///< data::to_text of the run's DataIdentity
  std::int64_t saved_step = -1;     ///< step of the checkpoint that the run resumes from
  std::string saved_path = {};      ///< folder of that checkpoint
  std::string resume_flags = {};    ///< flags with which the same command resumes
  std::string evaluated_data = {};  ///< ValidationRecord::data of that checkpoint
  std::string run_name = {};        ///< store::run_key, for dtrun
  const base::HeldFolder& folder;   ///< the run folder
  /// Called before each save; throws if the run folder no longer belongs to this job.
  std::function<void()> check_folder;
};

/// Begins saves and reports the result of each; counts failed saves. The checkpoint of
/// SavePoint::best_step is kept until the checkpoint of a newer best step is committed.
///
/// Collective: begin, advance, finish_within, finish and save_with_retry, on every rank of the
///             world, with equal arguments.
/// Threads:    one.
class CheckpointWriter {
 public:
  /// world: the group of all ranks. All but the options must outlive this.
  ///
  /// Collective: every rank of the world.
  /// Throws:     StorageError if the search for the best checkpoint fails.
  CheckpointWriter(parallel::StepEngine& engine, comm::ProcessGroup& world,
                   metrics::Reporter& reporter, LatestCheckpoint& latest,
                   const CheckpointOptions& options);

  /// Returns whether this rank is still writing; warns once a minute while it is.
  [[nodiscard]] bool poll();
  /// True while a save is in progress; equal on all ranks.
  [[nodiscard]] bool is_saving() const { return saver_.is_saving(); }

  /// Starts the save of a step; no save may be in progress.
  void begin(const checkpoint::SavePoint& point);
  /// Advances the save in progress, if any, to its next phase. Call when no rank is busy.
  void advance();
  /// Waits for the save in progress, but not much longer than `patience`.
  void finish_within(base::Seconds patience);
  /// Waits for the save in progress, if any.
  void finish();
  /// Saves the step, unless its checkpoint is already committed, and waits. Retries a failed save
  /// once, because no later save will replace it. Returns the error of the second attempt; empty on
  /// success.
  [[nodiscard]] std::string save_with_retry(const checkpoint::SavePoint& point);

  /// The step of the last save begun, or of the checkpoint that the run resumes from.
  [[nodiscard]] std::int64_t saved_step() const { return saved_step_; }
  /// Marks that checkpoint as the best one.
  void mark_best() { best_step_ = saved_step_; }
  [[nodiscard]] std::int64_t num_failures() const { return num_failures_; }

 private:
  void report(const checkpoint::SaveReport& report);

  parallel::StepEngine& engine_;
  metrics::Reporter& reporter_;
  LatestCheckpoint& latest_;
  base::Disk disk_;
  checkpoint::Saver saver_;
  std::function<void()> check_folder_;
  std::int64_t saved_step_;
  bool saves_best_ = false;      // the last save is that of the best step so far
  std::int64_t best_step_ = -1;  // the newest best step with a committed checkpoint; used on rank 0
  std::int64_t num_failures_ = 0;
  std::string last_error_;  // error of the last save; empty if it succeeded
  std::string last_warning_;
};

}  // namespace dtrain::train
