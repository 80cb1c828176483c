// Declares TrainContext, the objects of a rank that all parts of the training loop use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "dtrain/base/launcher_link.h"
#include "dtrain/data/split.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/metrics/reporter.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/checkpointer.h"
#include "dtrain/train/internal/stop_requests.h"
#include "dtrain/train/state_check.h"
#include "dtrain/train/step_clock.h"

namespace dtrain::train {

/// Predicted memory and step time of a run.
struct Predictions {
  /// Peak bytes of tensors within steps, summed over the ranks whose peak is measured together.
  std::int64_t memory = 0;
  std::int64_t peak_memory = 0;             ///< as `memory`, but over the whole run
  std::optional<double> step_seconds = {};  ///< set if the planner chose the layout
};

/// Name of the phase in which an event is written to disk, which may be slow.
inline constexpr const char* kWritingMetrics = "writing metrics";

/// The parts of one rank's job that the training loop uses; they must outlive the loop.
struct TrainContext {
  const config::Config& config;
  const mesh::MeshGroups& groups;
  comm::ProcessGroup& world;  ///< all ranks, for data in host memory
  parallel::StepEngine& engine;
  const model::Model& model;  ///< the whole model, not only this rank's part
  Predictions predicted;
  std::optional<double> peak_flops;  ///< FLOP/s of all ranks, measured at the start, for MFU
  const data::Split& split;
  metrics::Reporter& reporter;
  base::LauncherLink& link;  ///< may be disconnected
  StepClock& clock;
  StateCheck& state_check;
  Checkpointer& checkpoints;
  StopRequests& requests;
  /// Called before the final model is written; throws if the run folder no longer belongs to this
  /// job.
  std::function<void()> check_folder;
  const FolderMonitor& folder;                            ///< repeats this check while training
  std::shared_ptr<const data::Tokenizer> tokenizer = {};  ///< null without samples

  /// The device that computes steps.
  [[nodiscard]] c10::Device device() const { return engine.gradients().flat().device(); }
};

}  // namespace dtrain::train
