// What training works with.
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

namespace dtrain::train {

/// Predicted memory and step time of a run.
struct Predictions {
  /// Peak bytes of tensors within steps, over all ranks whose peak is measured together.
  std::int64_t memory = 0;
  std::int64_t peak_memory = 0;             ///< likewise over the whole run
  std::optional<double> step_seconds = {};  ///< of a layout that was chosen by it
};

/// The phase in which a report is written, to a disk that may be slow.
inline constexpr const char* kWritingMetrics = "writing metrics";

/// The parts of a rank that a trainer drives; all must outlive it.
struct TrainParts {
  const config::Config& config;
  const mesh::MeshGroups& groups;
  comm::ProcessGroup& world;  ///< all ranks, for what their hosts know
  parallel::StepEngine& engine;
  const model::Model& model;  ///< of all ranks together
  Predictions predicted;
  std::optional<double> peak_flops;  ///< FLOP/s of all ranks, measured at the start, for MFU
  bool are_cpus_mixed = false;
  const data::Split& split;
  metrics::Reporter& reporter;
  base::LauncherLink& link;  ///< may be disconnected
  Checkpointer& checkpoints;
  StopRequests& requests;
  /// Throws if the run folder is no longer this job's: called before the final model is written.
  std::function<void()> check_folder;
  const FolderMonitor& folder;                            ///< does the same while training
  std::shared_ptr<const data::Tokenizer> tokenizer = {};  ///< where samples are written

  /// Where a step computes.
  [[nodiscard]] c10::Device device() const { return engine.gradients().flat().device(); }
};

}  // namespace dtrain::train
