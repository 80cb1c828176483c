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

/// Returns the bytes of the state of an optimizer of one shard, of what has a value for each
/// element.
[[nodiscard]] std::int64_t state_bytes(const OptimizerOptions& options,
                                       const param::ArenaLayout& layout, at::ScalarType dtype);

/// The parameters that are never updated.
[[nodiscard]] std::span<const param::ParameterId> frozen_by(const OptimizerOptions& options);

}  // namespace dtrain::optim
