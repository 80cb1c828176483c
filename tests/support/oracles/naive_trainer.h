// A naive trainer, as an oracle for the engine: plain autograd through all blocks at once,
// gradients of all microbatches gathered and summed in float64, and scalar AdamW.
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

/// The summed token loss of one microbatch, and its gradients by parameter.
struct NaiveGradients {
  double sum_nll = 0;
  std::vector<at::Tensor> gradients;  ///< in storage shapes; zeros for unused parameters
};

/// Computes loss and gradients by autograd. weights: by parameter id; copied, need not be leaves.
[[nodiscard]] NaiveGradients naive_gradients(model::Model& model,
                                             const std::vector<at::Tensor>& weights,
                                             const data::Batch& batch, std::uint64_t seed);

/// Naive DDP: every rank gathers all gradients in float64 and adds them.
///
/// gradients: for each of this rank's microbatches, a list by parameter; all ranks have equally
///            many microbatches.
/// Returns the sum over all microbatches of all ranks, by parameter, in float64.
///
/// Collective: every rank of `group`.
[[nodiscard]] std::vector<at::Tensor> naive_reduce(
    comm::ProcessGroup& group, const std::vector<std::vector<at::Tensor>>& gradients);

/// Scalar AdamW in float64 (Loshchilov and Hutter 2019).
struct ScalarAdamW {
  double first_moment = 0;
  double second_moment = 0;

  /// step counts from 1.
  [[nodiscard]] double update(double weight, double gradient, double lr,
                              const config::TrainConfig& train, double weight_decay,
                              std::int64_t step);
};

/// Trains config's model in float64 from the engine's initial weights, in one thread, one
/// microbatch of the global batch after another. Trace::state holds weights and moments.
[[nodiscard]] Trace naive_train(const config::Config& config);

}  // namespace dtrain::testing
