// Decides when a run saves, and reports each save.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/checkpoint/saver.h"
#include "dtrain/config/config.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

/// One rank's votes on saving in a step or, of all ranks: each true if any rank's is.
struct SaveVotes {
  bool save = false;  ///< it wants a checkpoint
  bool busy = false;  ///< it is still writing the last one
};

/// Saves a job's state at --checkpoint-every, on request, and at the end, while training goes on. A
/// save that is due while the last one is being written waits for it for a second; after that
/// training goes on, and the save is made as soon as the last one is over. A save that fails is
/// reported and counted, and training goes on; the last one of a run is tried once more first.
/// The checkpoint of SavePoint::best_step stays until that of a newer one stands: one whose save
/// fails does not take its place. The caller checks the state before each save that it begins.
///
/// Threads: one.
class Checkpointer {
 public:
  struct Options {
    const config::Config& config;
    std::string run;                  ///< the job's name
    std::string data_fingerprint;     ///< data::to_text of its identity
    std::int64_t saved_step = -1;     ///< the step of the checkpoint that the run goes on from
    std::string saved_path = {};      ///< its folder
    std::string resume_flags = {};    ///< flags with which the same command resumes
    std::string evaluated_data = {};  ///< of the validation record that the run goes on with
    std::string run_name = {};        ///< as store::run_key, for dtrun
    const base::HeldFolder& folder;   ///< the run's
    /// Throws if the run folder is no longer this job's: called before each save.
    std::function<void()> check_folder;
  };

  /// world: the group of all ranks. All but the options must outlive this.
  ///
  /// Collective: every rank of the world.
  /// Throws:     StorageError if the best checkpoint cannot be looked for.
  Checkpointer(parallel::StepEngine& engine, comm::ProcessGroup& world, metrics::Reporter& reporter,
               base::LauncherLink& link, const Options& options);

  /// This rank's, in the next step. save_requested: by a user.
  [[nodiscard]] SaveVotes votes(bool save_requested);

  /// Takes a save under way further. Returns whether the checkpoint of this step is due, and the
  /// last one is over: then save() it. agreed: the votes of all ranks in that step.
  ///
  /// Collective: every rank of the world, with equal arguments.
  [[nodiscard]] bool after_step(std::int64_t step, const SaveVotes& agreed);

  /// The same for a step with a new lowest validation loss, whose checkpoint is due even if the last
  /// one must be waited for. False if the run goes on from it.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] bool after_best_step(std::int64_t step);

  /// Begins the checkpoint of a step; none may be under way. Without a copy of the state it is
  /// written on return.
  ///
  /// Collective: every rank of the world.
  void save(const checkpoint::SavePoint& point);

  /// True unless the step's save was begun, or the run goes on from it.
  [[nodiscard]] bool lacks(std::int64_t step) const { return saved_step_ != step; }

  /// Saves the last step, unless --checkpoint-every is none. Returns what went wrong at the second
  /// try, which is reported too; empty: nothing.
  ///
  /// Collective: every rank of the world.
  [[nodiscard]] std::string save_last(const checkpoint::SavePoint& point);

  /// Waits for the save under way, if there is one.
  ///
  /// Collective: every rank of the world.
  void finish();

  /// Saves and returns when the checkpoint stands.
  ///
  /// Collective: every rank of the world.
  /// Throws:     Error{checkpoint} on every rank if it cannot be written at two tries.
  void save_now(const checkpoint::SavePoint& point);

  [[nodiscard]] std::int64_t num_failures() const { return num_failures_; }
  /// The newest checkpoint that stands, or that the run goes on from; empty: there is none.
  [[nodiscard]] const std::string& newest() const { return newest_; }
  /// Names the run's latest checkpoint and the flags that resume from it; empty if there is none,
  /// or none any more.
  [[nodiscard]] std::string how_to_continue() const;
  /// Tells the launcher of the checkpoint that the run resumes from, once the run folder is this
  /// launch's.
  void notify_start();
  /// Withdraws what the launcher would advise if the checkpoint is not there any more.
  void notify_failure() const;

 private:
  void make_room(std::int64_t step);
  void begin(const checkpoint::SavePoint& point);
  void save_at_the_end(const checkpoint::SavePoint& point);
  void tell(const checkpoint::SaveReport& report);
  void notify_launcher(std::int64_t step);

  parallel::StepEngine& engine_;
  comm::ProcessGroup& world_;
  metrics::Reporter& reporter_;
  base::LauncherLink& link_;
  config::CheckpointConfig config_;
  base::Disk disk_;
  checkpoint::Saver saver_;
  base::Clock::time_point last_ = base::Clock::now();  // start of the last save
  std::function<void()> check_folder_;
  std::int64_t saved_step_;
  bool is_waiting_ = false;      // a save is due, and the last one not over
  bool is_late_ = false;         // training has waited for it, in vain
  bool saves_best_ = false;      // the last save is of the best step so far
  std::int64_t best_step_ = -1;  // the newest best one whose checkpoint stands; rank 0's counts
  std::int64_t num_failures_ = 0;
  std::string last_error_;  // of the last save
  std::string last_warning_;
  std::string newest_;
  std::int64_t newest_step_ = -1;  // that the launcher was told of
  bool is_newest_own_;             // false: another run wrote it
  std::string resume_flags_;
  std::string run_name_;
};

}  // namespace dtrain::train
