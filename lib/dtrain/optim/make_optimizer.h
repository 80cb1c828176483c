// Makes optimizers; the only place that knows which there are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <variant>

#include "dtrain/optim/adamw.h"
#include "dtrain/optim/sgd.h"

namespace dtrain::optim {

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                                        const OptimizerOptions& options);

/// Returns the optimizer's values for each element: the number of arenas of its state().
[[nodiscard]] std::int64_t values_per_element(const OptimizerOptions& options);

/// The parameters that are never updated.
[[nodiscard]] std::span<const param::ParameterId> frozen_by(const OptimizerOptions& options);

}  // namespace dtrain::optim
