// Starts a run from initial values, from the weights of --init-from, or from a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"
#include "dtrain/data/split.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/internal/run_history.h"

namespace dtrain::train {

/// A launch's starting point.
struct StartPoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;                   ///< samples consumed from the current data
  std::int64_t tokens = 0;                    ///< tokens consumed in the whole run
  std::string checkpoint = {};                ///< folder of the checkpoint; empty for a new run
  std::vector<std::int64_t> unreadable = {};  ///< steps of newer, unreadable checkpoints
  RunHistory history = {};
  std::string initial_weights = {};  ///< file that --init-from loaded; empty without --init-from
  double seconds = 0;                ///< time to find, verify and load the checkpoint
  /// False if the step's validation loss is due and not in metrics.jsonl.
  bool is_evaluated = true;
};

/// The job into which load_start() loads, and with which it compares the checkpoint.
struct StartContext {
  const config::Config& config;
  comm::ProcessGroup& world;  ///< all ranks, for data in host memory
  parallel::StepEngine& engine;
  const model::Model& model;         ///< the whole model, not only this rank's part
  const data::DataIdentity& data;    ///< compared with the checkpoint's
  std::string tokenizer = {};        ///< data::identity_of the training data's tokenizer
  std::int64_t committed_step = -1;  ///< last step committed by an earlier attempt; negative: none
  bool are_cpus_mixed = false;       ///< ranks may compute different norms of equal weights
  bool is_quiet = false;             ///< print only changed settings that affect results
};

/// Finds the checkpoint or weights that config.checkpoint names, verifies them and loads them into
/// the engine. Prints the settings that differ from the checkpoint's. With new_data, the step,
/// model and optimizer come from the checkpoint, and the data begins at its first sample, unless
/// the run has already started to read this data.
///
/// Collective: every rank of the world.
/// Throws:     Error{usage} naming the setting or data that differs from the checkpoint's, for
///             new_data without a checkpoint, or for a wrong --resume or --init-from path;
///             Error{data} if initial weights, or a checkpoint that gets new data, record another
///             tokenizer than the data's; Error{checkpoint} as checkpoint::choose.
[[nodiscard]] StartPoint load_start(const StartContext& context);

}  // namespace dtrain::train
