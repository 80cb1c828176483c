// Decides when a run saves a checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/train/internal/checkpoint_writer.h"
#include "dtrain/train/internal/latest_checkpoint.h"
#include "dtrain/train/state_check.h"

namespace dtrain::train {

/// Name, in hang reports, of the phase in which training waits for a save.
inline constexpr const char* kSavingPhase = "saving";

/// One rank's votes on saving in a step; reduced over all ranks by logical OR.
struct SaveVotes {
  bool save = false;  ///< the rank wants a checkpoint
  bool busy = false;  ///< the rank is still writing the previous checkpoint
};

/// Saves a job's state at --checkpoint-every, on request, and at the end, while training continues.
/// If a save is due while the previous one is in progress, training waits for one second, then
/// continues; the save begins when the previous one has ended. A failed save is reported and
/// counted, and training continues; the last save of a run is first retried once. A state that is
/// not finite is never saved.
///
/// Throws:  save, save_and_stop and save_last: Error{numerics} on every rank, naming the latest
///          checkpoint, if the state is not finite.
/// Threads: one.
class Checkpointer {
 public:
  /// world: the group of all ranks. All arguments except `options`, and all objects to which
  /// `options` refers, must outlive this.
  ///
  /// Collective: every rank of the world.
  /// Throws:     StorageError if the search for the best checkpoint fails.
  Checkpointer(parallel::StepEngine& engine, comm::ProcessGroup& world, metrics::Reporter& reporter,
               base::LauncherLink& link, const CheckpointOptions& options);

  /// Returns this rank's votes in the next step. save_requested: a user has requested a save.
  [[nodiscard]] SaveVotes votes(bool save_requested);

  /// Advances the save in progress. Returns true if the checkpoint of this step is due and no save
  /// is in progress; the caller must then call save(). agreed: the reduced votes of that step.
  ///
  /// Collective: every rank of the world, with equal arguments.
  [[nodiscard]] bool after_step(std::int64_t step, const SaveVotes& agreed);

  /// As after_step(), for a step with a new lowest validation loss: waits for the save in progress,
  /// so that the step's checkpoint can be saved. False if the run resumes from this step's
  /// checkpoint.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] bool after_best_step(std::int64_t step);

  /// Checks the state and begins the checkpoint of a step; no save may be in progress. With
  /// --checkpoint-every none the state is not copied, and the checkpoint has been written on
  /// return.
  ///
  /// Collective: every rank of the world.
  void save(const checkpoint::SavePoint& point);

  /// Saves a run that stops early; returns once the checkpoint is committed.
  ///
  /// Collective: every rank of the world.
  /// Throws:     also Error{checkpoint} on every rank if two attempts to save have failed.
  void save_and_stop(const checkpoint::SavePoint& point);

  /// Checks the state of a finished run and saves it, unless --checkpoint-every is none. If two
  /// attempts fail, reports and returns the second error; empty on success.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::string save_last(const checkpoint::SavePoint& point);

  /// Ends the run because of a numerical failure. First completes the save in progress, whose state
  /// was finite.
  ///
  /// Collective: every rank of the world, after the same step.
  /// Throws:     Error{numerics} naming the latest checkpoint.
  [[noreturn]] void fail(const NumericalFailure& failure);

  [[nodiscard]] std::int64_t num_failures() const { return writer_.num_failures(); }
  [[nodiscard]] LatestCheckpoint& latest() { return latest_; }

 private:
  void check_state(std::int64_t step);
  void wait_for_previous(std::int64_t step);

  metrics::Reporter& reporter_;
  base::LauncherLink& link_;
  StateCheck& state_check_;
  config::CheckpointConfig config_;
  LatestCheckpoint latest_;
  CheckpointWriter writer_;
  base::Clock::time_point last_save_ = base::Clock::now();  // start of the last save
  bool is_due_ = false;      // a save is due when the previous one has ended
  bool has_waited_ = false;  // training has waited a second for the previous save
};

}  // namespace dtrain::train
