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
  const auto* sgd = std::get_if<SgdOptions>(&options);
  return sgd != nullptr ? Sgd::num_arenas(*sgd) : AdamW::kNumArenas;
}

std::int64_t state_bytes(const OptimizerOptions& options, const param::ArenaLayout& layout,
                         at::ScalarType dtype) {
  return values_per_element(options) * param::Arena::bytes_of_trained_shard(layout, dtype);
}

}  // namespace dtrain::optim
