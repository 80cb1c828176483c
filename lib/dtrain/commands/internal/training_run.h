// Runs one rank of `dtrain train` after its layout has been chosen.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dtrain/base/io/file_system.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"
#include "dtrain/commands/internal/layout_choice.h"
#include "dtrain/data/split.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/job/job.h"
#include "dtrain/job/run_folder.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/train/checkpointer.h"
#include "dtrain/train/start_point.h"
#include "dtrain/train/training_loop.h"

namespace dtrain::commands {

/// Resources that a rank opens before its layout is chosen; must outlive its TrainingRun.
struct RankContext {
  const base::RankEnv& env;
  base::LauncherLink& link;
  /// The phase reported to the launcher: "the start"; later "ending", which includes destructors.
  std::optional<base::LongPhase>& phase;
  const data::Split& split;
  std::shared_ptr<const data::Tokenizer> tokenizer;  ///< null without samples
  std::shared_ptr<comm::World> world;
};

/// Trains in a run folder. run() calls the private functions below in order.
///
/// Collective: every rank constructs and runs one.
/// Threads:    one.
class TrainingRun {
 public:
  TrainingRun(const RankContext& rank, const ChosenLayout& layout);

  /// Returns the exit status: 0, or that of ErrorKind::interrupted if the run was stopped early
  /// (0 within SLURM).
  ///
  /// Throws: as commands::train.
  int run();

 private:
  void build_job();
  void take_run_folder();
  void load_start();
  void prepare_saving();
  void begin_run_folder();
  void report_start();
  [[nodiscard]] train::RunEnd train();
  void request_requeue(std::int64_t step);

  struct Names {
    std::string launch;        // unique to this launch of the job; chosen by rank 0
    std::string run;           // store::run_key
    std::string resume_flags;  // flags to add to this command to resume the run
  };

  const RankContext& rank_;
  ChosenLayout layout_;  // its configuration names the run folder from take_run_folder() on
  // Destroyed last: a signal while memory is freed must not change the run's exit status.
  std::optional<train::StopRequests> requests_;
  std::optional<double> peak_flops_;
  std::optional<job::Job> job_;
  data::DataIdentity data_;
  Names names_;
  std::optional<job::RunFolder> folder_;  // on rank 0
  std::unique_ptr<base::HeldFolder> held_folder_;
  train::StartPoint start_;
  std::optional<train::FolderMonitor> monitor_;
  std::optional<metrics::Reporter> reporter_;
  std::optional<train::StepClock> clock_;
  std::optional<train::StateCheck> state_check_;
  std::optional<train::Checkpointer> checkpoints_;
};

}  // namespace dtrain::commands
