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

/// The phase in which training waits for a save.
inline constexpr const char* kSavingPhase = "saving";

/// One rank's votes on saving in a step; of all ranks together, each is true if any rank's is.
struct SaveVotes {
  bool save = false;  ///< it wants a checkpoint
  bool busy = false;  ///< it is still writing the previous one
};

/// Saves a job's state at --checkpoint-every, on request, and at the end, while training continues.
/// A save that is due while the previous one is being written waits for it for a second; after that
/// training continues, and the save begins as soon as the previous one has ended. A failed save is
/// reported and counted, and training continues; the last one of a run is retried once first.
/// A state that is not finite is never saved.
///
/// Throws:  Error{numerics} on every rank, naming the latest checkpoint, if the state that save,
///          save_and_stop or save_last is to save is not finite.
/// Threads: one.
class Checkpointer {
 public:
  /// world: the group of all ranks. All but the options must outlive this; so must what they refer
  /// to.
  ///
  /// Collective: every rank of the world.
  /// Throws:     StorageError if the best checkpoint cannot be looked for.
  Checkpointer(parallel::StepEngine& engine, comm::ProcessGroup& world, metrics::Reporter& reporter,
               base::LauncherLink& link, const CheckpointOptions& options);

  /// This rank's votes in the next step. save_requested: by a user.
  [[nodiscard]] SaveVotes votes(bool save_requested);

  /// Advances the save in progress. Returns whether the checkpoint of this step is due and none is
  /// in progress: then save() it. agreed: the votes of all ranks in that step.
  ///
  /// Collective: every rank of the world, with equal arguments.
  [[nodiscard]] bool after_step(std::int64_t step, const SaveVotes& agreed);

  /// The same for a step with a new lowest validation loss, whose checkpoint is due even if that
  /// takes waiting for the previous one. False if the run resumes from this step's checkpoint.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] bool after_best_step(std::int64_t step);

  /// Checks the state and begins the checkpoint of a step; none may be in progress. With
  /// --checkpoint-every none the state is not copied, and the checkpoint is written on return.
  ///
  /// Collective: every rank of the world.
  void save(const checkpoint::SavePoint& point);

  /// Saves a run that stops early; returns once the checkpoint is committed.
  ///
  /// Collective: every rank of the world.
  /// Throws:     also Error{checkpoint} on every rank if two attempts to write it failed.
  void save_and_stop(const checkpoint::SavePoint& point);

  /// Checks the state of a finished run and saves it, unless --checkpoint-every is none. Returns
  /// the error of the second attempt, which is also reported; empty on success.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::string save_last(const checkpoint::SavePoint& point);

  /// Ends the run because of its numbers, after the save in progress: its state was good.
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
  bool is_due_ = false;      // a save waits for the previous one to end
  bool has_waited_ = false;  // training has waited for the previous one, in vain
};

}  // namespace dtrain::train
