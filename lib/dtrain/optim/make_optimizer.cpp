#include "dtrain/optim/make_optimizer.h"

namespace dtrain::optim {

std::unique_ptr<Optimizer> make_optimizer(const OptimizerShard& shard,
                                          const OptimizerOptions& options) {
  if (const auto* sgd = std::get_if<SgdOptions>(&options)) {
    return std::make_unique<Sgd>(shard, *sgd);
  }
  return std::make_unique<AdamW>(shard, std::get<AdamWOptions>(options));
}

std::int64_t values_per_element(const OptimizerOptions& options) {
  if (const auto* sgd = std::get_if<SgdOptions>(&options)) return sgd->momentum == 0 ? 0 : 1;
  return 2;
}

std::span<const param::ParameterId> frozen_by(const OptimizerOptions& options) {
  return std::visit([](const auto& of) -> std::span<const param::ParameterId> { return of.frozen; },
                    options);
}

}  // namespace dtrain::optim
