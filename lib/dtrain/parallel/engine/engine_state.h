// What a checkpoint holds of an engine.
#pragma once

#include "dtrain/checkpoint/state.h"
#include "dtrain/optim/grad_scaler.h"
#include "dtrain/optim/optimizer.h"
#include "dtrain/parallel/data/parameter_store.h"
#include "dtrain/parallel/placement.h"

namespace dtrain::parallel {

/// The name of the loss scale's state.
inline constexpr const char* kLossScale = "optimizer.loss_scale";

struct EngineState {
  const model::Model& model;
  const param::ArenaLayout& layout;
  const DataGroups& data;
  const comm::ProcessGroup& world;
  const Placement& placement;
  const param::Arena& masters;
  const optim::Optimizer& optimizer;
  const optim::GradScaler* scaler = nullptr;  ///< null: the loss is not scaled
};

/// This rank's part of parameters and optimizer state, sharing memory: model.NAME,
/// optimizer.STATE.NAME (exp_avg and exp_avg_sq, or momentum_buffer) in storage shapes, and
/// optimizer.num_updates; with loss scaling optimizer.loss_scale.
[[nodiscard]] checkpoint::State pieces_of(const EngineState& engine);

}  // namespace dtrain::parallel
