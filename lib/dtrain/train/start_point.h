// Where a run begins: at nothing, at given weights, or at a checkpoint.
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

struct StartPoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;  ///< of the data that the run reads
  std::int64_t tokens = 0;
  std::string checkpoint = {};                ///< folder; empty: the run begins
  std::vector<std::int64_t> unreadable = {};  ///< steps of newer checkpoints that may be whole
  RunHistory history = {};
  std::string initial_weights = {};  ///< path that --init-from took them from; empty: no such path
  double seconds = 0;                ///< to find, verify and load it
  bool is_evaluated = true;  ///< metrics.jsonl has a validation loss of its step, if one is due
};

/// The parts of a job that a start is loaded into and compared with.
struct StartParts {
  const config::Config& config;
  comm::ProcessGroup& world;  ///< all ranks, for what their hosts know
  parallel::StepEngine& engine;
  const model::Model& model;         ///< of all ranks together
  const data::DataIdentity& data;    ///< to be compared with the checkpoint's
  std::string tokenizer = {};        ///< data::identity_of that of the training data
  std::int64_t committed_step = -1;  ///< that an earlier attempt has reached; negative: none
  bool are_cpus_mixed = false;       ///< ranks may find different norms of the same weights
  bool is_quiet = false;             ///< only changes of results are shown
};

/// Finds what config.checkpoint asks for, verifies it and loads it into the engine. Shows the
/// settings that differ from the checkpoint's. With new_data the step, model and optimizer are the
/// checkpoint's and the position in the data is 0, unless the run has begun this data before.
///
/// Collective: every rank of the world.
/// Throws:     Error{usage} naming the setting or the data in which the checkpoint's run differs,
///             new_data without any, or a --resume or --init-from path that is none;
///             Error{checkpoint} as checkpoint::choose.
[[nodiscard]] StartPoint load_start(const StartParts& parts);

}  // namespace dtrain::train
