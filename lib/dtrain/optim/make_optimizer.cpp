#include "dtrain/optim/make_optimizer.h"

namespace dtrain::optim {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                          const OptimizerOptions& options) {
  if (const auto* sgd = std::get_if<SgdOptions>(&options)) {
    return std::make_unique<Sgd>(shard, *sgd);
  }
  return std::make_unique<AdamW>(shard, std::get<AdamWOptions>(options));
}

std::int64_t state_bytes(const OptimizerOptions& options, const param::ArenaLayout& layout,
                         at::ScalarType dtype) {
  const auto* sgd = std::get_if<SgdOptions>(&options);
  const std::int64_t arenas = sgd != nullptr ? Sgd::num_arenas(*sgd) : AdamW::kNumArenas;
  return arenas * param::Arena::bytes_of_shard(layout, dtype);
}

std::span<const param::ParameterId> frozen_by(const OptimizerOptions& options) {
  return std::visit([](const auto& of) -> std::span<const param::ParameterId> { return of.frozen; },
                    options);
}

}  // namespace dtrain::optim
