#include "dtrain/parallel/engine/internal/gradient_accumulator.h"

#include <utility>

namespace dtrain::parallel {

GradientAccumulator::GradientAccumulator(const model::Model& model,
                                         param::GradientMemory& gradients,
                                         std::int64_t interleaved_microbatches, OnReady on_ready)
    : gradients_(gradients),
      on_ready_(std::move(on_ready)),
      num_backwards_(model.parameters.size()) {
  for (const auto& block : model.blocks) {
    for (const param::ParameterId id : block->parameters()) {
      num_backwards_[id] += interleaved_microbatches;
    }
  }
  pending_backwards_ = num_backwards_;
}

void GradientAccumulator::add(const ParameterGradient& gradient) {
  if (gradient.value.defined()) gradients_.add_gradient(gradient.id, gradient.value);
  if (!gradient.is_last) return;
  std::int64_t& pending = pending_backwards_[gradient.id];
  if (--pending > 0) return;
  pending = num_backwards_[gradient.id];
  on_ready_(gradient.id);
}

}  // namespace dtrain::parallel
