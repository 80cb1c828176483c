// The simplest way to train a model, as an oracle for the engine: plain autograd through all blocks
// at once, gradients of all microbatches gathered in float64 and summed, AdamW written out for one
// number.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtrain/comm/process_group.h"
#include "dtrain/config/config.h"
#include "dtrain/data/batch.h"
#include "dtrain/model/model.h"
#include "support/engine_run.h"

namespace dtrain::testing {

/// The sum of token losses of one microbatch and its gradients, by parameter.
struct NaiveGradients {
  double sum_nll = 0;
  std::vector<at::Tensor> gradients;  ///< storage shapes; zeros where there is none
};

/// weights: leaves or not, by parameter id; copied.
[[nodiscard]] NaiveGradients naive_gradients(model::Model& model,
                                             const std::vector<at::Tensor>& weights,
                                             const data::Batch& batch, std::uint64_t seed);

/// DDP as one would explain it: every rank gathers everything in float64 and adds it up.
///
/// gradients: this rank's microbatches, of equal numbers on all ranks, each a list by parameter.
/// Returns the sum over all microbatches of all ranks by parameter, float64.
///
/// Collective: every rank of `group`.
[[nodiscard]] std::vector<at::Tensor> naive_reduce(
    comm::ProcessGroup& group, const std::vector<std::vector<at::Tensor>>& gradients);

/// One AdamW update of one number in float64 (Loshchilov and Hutter 2019).
struct ScalarAdamW {
  double first_moment = 0;
  double second_moment = 0;

  /// step counts from 1.
  [[nodiscard]] double update(double weight, double gradient, double lr,
                              const config::TrainConfig& train, double weight_decay,
                              std::int64_t step);
};

/// Trains config's model from the weights of its engine's initial state, global microbatch by
/// global microbatch in one thread, in float64. The trace's state holds weights and moments.
[[nodiscard]] Trace naive_train(const config::Config& config);

}  // namespace dtrain::testing
