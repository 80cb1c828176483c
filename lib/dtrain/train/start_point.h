// Where a run begins: at nothing, at given weights, or at a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"
#include "dtrain/data/split.h"
#include "dtrain/parallel/engine/step_engine.h"
#include "dtrain/train/run_history.h"

namespace dtrain::train {

struct StartPoint {
  std::int64_t step = 0;
  std::int64_t samples = 0;
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
};

/// Finds what config.checkpoint asks for, verifies it and loads it into the engine.
///
/// Collective: every rank of the world.
/// Throws:     Error{usage} naming the setting or the data in which the checkpoint's run differs,
///             or a --resume or --init-from path that is none; Error{checkpoint} as
///             checkpoint::choose.
[[nodiscard]] StartPoint load_start(const StartParts& parts);

/// The settings in which a run may not differ from the one that it goes on from, each as "KEY is A,
/// the checkpoint has B"; and those in which it may and does. Empty texts: none.
struct Differences {
  std::string refused;
  std::string noted;
};
[[nodiscard]] Differences compare_settings(const config::Config& now, const config::Config& saved);

/// False where gradients are compressed in another way or by another layout: their norms are on
/// another level, and what ranks have not sent yet may be due at once.
[[nodiscard]] bool have_equal_norms(const config::Config& now, const config::Config& saved);

}  // namespace dtrain::train
