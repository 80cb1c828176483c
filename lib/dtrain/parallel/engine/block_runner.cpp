#include "dtrain/parallel/engine/block_runner.h"

#include <ATen/ops/full_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

// Autograd has a thread for each device; the streams and the state of a rank belong to its own.
class OwnThread {
 public:
  OwnThread() { state().set_multithreading_enabled(false); }
  OwnThread(const OwnThread&) = delete;
  OwnThread& operator=(const OwnThread&) = delete;
  ~OwnThread() { state().set_multithreading_enabled(was_enabled_); }

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  bool was_enabled_ = state().get_multithreading_enabled();
};

}  // namespace

BlockRunner::BlockRunner(model::Model& model, const param::ParameterViews& parameters,
                         param::GradientMemory& gradients, model::TensorAxis& axis, Options options)
    : model_(model),
      read_leaf_([this](param::ParameterId id) { return leaves_[id]; }),
      gradients_(gradients),
      seed_(options.seed),
      buffer_dtype_(options.buffer_dtype),
      recompute_(std::move(options.recompute)),
      num_to_settle_(model.parameters.size()),
      tensor_axis_(axis) {
  for (const param::ParameterId id : parameters.ids()) {
    const bool is_frozen =
        std::find(options.frozen.begin(), options.frozen.end(), id) != options.frozen.end();
    leaves_.push_back(parameters[id].detach().set_requires_grad(!is_frozen));
  }
  for (const auto& block : model.blocks) {
    for (const param::ParameterId id : block->parameters()) {
      num_to_settle_[id] += options.settled_together;
    }
  }
  unsettled_ = num_to_settle_;
}

void BlockRunner::begin(MicrobatchId microbatch, const MicrobatchInput& input) {
  Microbatch& entry = microbatches_[microbatch];
  entry = Microbatch{};
  entry.activation = input.ids;
  entry.input = input;
}

void BlockRunner::set_activation(MicrobatchId microbatch, at::Tensor activation) {
  microbatches_.at(microbatch).activation = std::move(activation);
}

at::Tensor BlockRunner::take_activation(MicrobatchId microbatch) {
  return std::exchange(microbatches_.at(microbatch).activation, at::Tensor());
}

void BlockRunner::set_gradient(MicrobatchId microbatch, at::Tensor gradient) {
  microbatches_.at(microbatch).gradient = std::move(gradient);
}

at::Tensor BlockRunner::take_gradient(MicrobatchId microbatch) {
  return std::exchange(microbatches_.at(microbatch).gradient, at::Tensor());
}

bool BlockRunner::gives_losses(BlockId block) const {
  return model_.gives_losses && block + 1 == model_.blocks.end_id();
}

model::BlockContext BlockRunner::context_of(const MicrobatchInput& input,
                                            const model::ParameterReader& use,
                                            const model::Tap& tap) {
  return {.first_sample = input.first_sample,
          .training = training_,
          .seed = seed_,
          .targets = input.targets,
          .buffer_dtype = buffer_dtype_,
          .use = use,
          .tensor_axis = tensor_axis_,
          .tap = tap};
}

at::Tensor BlockRunner::forward(BlockId block, MicrobatchId microbatch) {
  Microbatch& entry = microbatches_.at(microbatch);
  DTRAIN_CHECK(entry.activation.defined(), "block {} has no input", block.value());
  const RecomputeGroup* group = recompute_.group_of(block);
  if (training_ && (group == nullptr || group->begin == block)) {
    entry.saved[block].input = entry.activation.detach();
  }
  if (training_ && group == nullptr) {
    record(block, entry, tap_);
    entry.activation = entry.saved.at(block).output.detach();
  } else {
    entry.activation = run_without_graph(block, entry.activation, entry.input, tap_);
  }
  return gives_losses(block) ? entry.activation : at::Tensor();
}

void BlockRunner::record(BlockId block, Microbatch& entry, const model::Tap& tap) {
  SavedBlock& saved = entry.saved.at(block);
  if (model::NativeBackward* native = model_.blocks[block]->native_backward()) {
    const at::NoGradGuard no_grad;
    saved.output =
        native->forward(saved.input, context_of(entry.input, read_leaf_, tap), saved.native);
    return;
  }
  const bool takes_tokens = block == BlockId(0) && model_.takes_tokens;
  if (!takes_tokens) saved.input.set_requires_grad(true);
  const std::span<const param::ParameterId> listed = model_.blocks[block]->parameters();
  const model::ParameterReader use = [&](param::ParameterId id) {
    DTRAIN_CHECK(std::find(listed.begin(), listed.end(), id) != listed.end(),
                 "block {} uses parameter {} without listing it", block.value(), id.value());
    const at::Tensor& leaf = leaves_[id];
    if (leaf.requires_grad()) ++saved.uses[id];
    return param::use_parameter(leaf, id, *this);
  };
  saved.output = model_.blocks[block]->forward(saved.input, context_of(entry.input, use, tap));
}

at::Tensor BlockRunner::run_without_graph(BlockId block, const at::Tensor& x,
                                          const MicrobatchInput& input, const model::Tap& tap) {
  const at::NoGradGuard no_grad;
  return model_.blocks[block]->forward(x, context_of(input, read_leaf_, tap));
}

void BlockRunner::run_again(BlockId block, Microbatch& entry) {
  const RecomputeGroup* group = recompute_.group_of(block);
  if (group == nullptr) return;
  if (block + 1 == group->end) {
    for (BlockId inner = group->begin; inner < block; ++inner) {
      entry.saved[inner + 1].input =
          run_without_graph(inner, entry.saved.at(inner).input, entry.input, no_tap_);
    }
  }
  record(block, entry, no_tap_);
}

void BlockRunner::backward(BlockId block, MicrobatchId microbatch, double seed,
                           const OnSettled& on_settled) {
  compute(block, microbatch, seed,
          [&](const GivenGradient& gradient) { give(gradient, on_settled); });
}

void BlockRunner::compute(BlockId block, MicrobatchId microbatch, double seed,
                          const OnGradient& on_gradient) {
  Microbatch& entry = microbatches_.at(microbatch);
  run_again(block, entry);
  SavedBlock& saved = entry.saved.at(block);
  active_block_ = &saved;
  on_gradient_ = &on_gradient;
  const bool begins = gives_losses(block) && !entry.gradient.defined();
  const at::Tensor gradient = begins ? at::full_like(saved.output, seed) : entry.gradient;
  if (model::NativeBackward* native = model_.blocks[block]->native_backward()) {
    const at::NoGradGuard no_grad;
    entry.gradient = native->backward(
        saved.input, gradient, saved.native, context_of(entry.input, read_leaf_, no_tap_),
        [this](param::ParameterId id) {
          const bool is_frozen = !leaves_[id].requires_grad();
          return is_frozen ? param::GradientPlace{} : gradients_.gradient_of(id);
        });
  } else {
    const OwnThread backward;
    if (saved.output.requires_grad()) torch::autograd::backward({saved.output}, {gradient});
    entry.gradient = saved.input.grad();
  }
  // Uses whose gradient never came, and parameters this block did not use this time.
  for (const param::ParameterId id : model_.blocks[block]->parameters()) {
    const auto use = saved.uses.find(id);
    if (use == saved.uses.end() || use->second > 0) on_gradient({.id = id});
  }
  entry.saved.erase(block);
}

void BlockRunner::add_gradient(param::ParameterId id, const at::Tensor& grad) {
  const bool is_last = --active_block_->uses.at(id) == 0;
  (*on_gradient_)({.id = id, .value = grad, .is_last = is_last});
}

void BlockRunner::give(const GivenGradient& gradient, const OnSettled& on_settled) {
  if (gradient.value.defined()) gradients_.add_gradient(gradient.id, gradient.value);
  if (!gradient.is_last) return;
  std::int64_t& unsettled = unsettled_[gradient.id];
  if (--unsettled > 0) return;
  unsettled = num_to_settle_[gradient.id];
  on_settled(gradient.id);
}

}  // namespace dtrain::parallel
