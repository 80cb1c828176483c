// Makes optimizers; the only place that knows which there are.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>

#include "dtrain/optim/adamw.h"
#include "dtrain/optim/sgd.h"

namespace dtrain::optim {

using OptimizerOptions = std::variant<AdamWOptions, SgdOptions>;

[[nodiscard]] std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                                        const OptimizerOptions& options);

/// Returns how many values an optimizer keeps for each element that it trains.
[[nodiscard]] std::int64_t values_per_element(const OptimizerOptions& options);

/// Returns the bytes of these values in one shard.
[[nodiscard]] std::int64_t state_bytes(const OptimizerOptions& options,
                                       const param::ArenaLayout& layout, at::ScalarType dtype);

}  // namespace dtrain::optim
