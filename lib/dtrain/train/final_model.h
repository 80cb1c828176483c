// RUN/final/model.safetensors: the trained weights under the reference's names and shapes.
#pragma once

#include <functional>
#include <string>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"
#include "dtrain/parallel/engine/step_engine.h"

namespace dtrain::train {

struct FinalModel {
  const model::Model& model;  ///< of all ranks together
  const config::ModelConfig& settings;
  std::string path;
  /// Called on rank 0 before the file is begun and again before it takes its name; throws if the
  /// folder must not be written to.
  std::function<void()> check;
  std::string tokenizer = {};  ///< data::identity_of that of the tokens
};

/// Writes the engine's weights. One unit of the parameters is in memory in full at a time.
///
/// Collective: every rank of `world`, the group of all ranks.
/// Throws:     Error{checkpoint} naming the file if it cannot be written; what `check` throws.
void write_final_model(parallel::StepEngine& engine, comm::ProcessGroup& world,
                       const FinalModel& final);

}  // namespace dtrain::train
