#include "dtrain/parallel/engine/internal/block_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <span>

#include "dtrain/base/error.h"

namespace dtrain::parallel {
namespace {

// Autograd runs backward passes on one thread per device, but a rank's streams and state belong to
// its own thread.
class SingleThreadedAutograd {
 public:
  SingleThreadedAutograd() { state().set_multithreading_enabled(false); }
  SingleThreadedAutograd(const SingleThreadedAutograd&) = delete;
  SingleThreadedAutograd& operator=(const SingleThreadedAutograd&) = delete;
  ~SingleThreadedAutograd() { state().set_multithreading_enabled(was_enabled_); }

 private:
  static c10::AutogradState& state() { return c10::AutogradState::get_tls_state(); }

  bool was_enabled_ = state().get_multithreading_enabled();
};

bool computes_losses(const model::Model& model, BlockId block) {
  return model.gives_losses && block + 1 == model.blocks.end_id();
}

}  // namespace

BlockRunner::BlockRunner(model::Model& model, const param::ParameterViews& parameters,
                         GradientAccumulator& gradients, model::TensorAxis& axis, Options options)
    : model_(model),
      read_leaf_([this](param::ParameterId id) { return leaves_[id]; }),
      gradients_(gradients),
      seed_(options.seed),
      buffer_dtype_(options.buffer_dtype),
      recompute_(std::move(options.recompute)),
      tensor_axis_(axis) {
  for (const param::ParameterId id : parameters.ids()) {
    const bool is_frozen =
        std::find(options.frozen.begin(), options.frozen.end(), id) != options.frozen.end();
    leaves_.push_back(parameters[id].detach().set_requires_grad(!is_frozen));
  }
}

void BlockRunner::begin(MicrobatchId microbatch, const MicrobatchInput& input) {
  Microbatch& entry = microbatches_[microbatch];
  entry = Microbatch{};
  entry.boundary.activation = input.ids;
  entry.input = input;
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
  at::Tensor& activation = entry.boundary.activation;
  DTRAIN_CHECK(activation.defined(), "block {} has no input", block.value());
  const RecomputeGroup* group = recompute_.group_of(block);
  if (training_ && (group == nullptr || group->begin == block)) {
    entry.saved[block].input = activation.detach();
  }
  if (training_ && group == nullptr) {
    record(block, entry, tap_);
    activation = entry.saved.at(block).output.detach();
  } else {
    activation = run_without_graph(block, activation, entry.input, tap_);
  }
  return computes_losses(model_, block) ? activation : at::Tensor();
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
    return param::use_parameter(leaf, id, saved);
  };
  saved.output = model_.blocks[block]->forward(saved.input, context_of(entry.input, use, tap));
}

at::Tensor BlockRunner::run_without_graph(BlockId block, const at::Tensor& x,
                                          const MicrobatchInput& input, const model::Tap& tap) {
  const at::NoGradGuard no_grad;
  return model_.blocks[block]->forward(x, context_of(input, read_leaf_, tap));
}

void BlockRunner::recompute(BlockId block, Microbatch& entry) {
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

void BlockRunner::backward(BlockId block, MicrobatchId microbatch, double seed) {
  compute(block, microbatch, seed,
          [this](const ParameterGradient& gradient) { gradients_.add(gradient); });
}

void BlockRunner::compute(BlockId block, MicrobatchId microbatch, double seed,
                          const OnGradient& on_gradient) {
  Microbatch& entry = microbatches_.at(microbatch);
  recompute(block, entry);
  SavedBlock& saved = entry.saved.at(block);
  saved.on_gradient = &on_gradient;
  at::Tensor& passed = entry.boundary.gradient;
  const bool begins = computes_losses(model_, block) && !passed.defined();
  const at::Tensor gradient = begins ? at::full_like(saved.output, seed) : passed;
  if (model::NativeBackward* native = model_.blocks[block]->native_backward()) {
    const at::NoGradGuard no_grad;
    passed = native->backward(
        saved.input, gradient, saved.native, context_of(entry.input, read_leaf_, no_tap_),
        [this](param::ParameterId id) {
          const bool is_frozen = !leaves_[id].requires_grad();
          return is_frozen ? param::GradientTarget{} : gradients_.target_of(id);
        });
  } else {
    const SingleThreadedAutograd backward;
    if (saved.output.requires_grad()) torch::autograd::backward({saved.output}, {gradient});
    passed = saved.input.grad();
  }
  // Complete uses without a gradient, and parameters that this block did not use.
  for (const param::ParameterId id : model_.blocks[block]->parameters()) {
    const auto use = saved.uses.find(id);
    if (use == saved.uses.end() || use->second > 0) on_gradient({.id = id});
  }
  entry.saved.erase(block);
}

void BlockRunner::SavedBlock::add_gradient(param::ParameterId id, const at::Tensor& grad) {
  const bool is_last = --uses.at(id) == 0;
  (*on_gradient)({.id = id, .value = grad, .is_last = is_last});
}

}  // namespace dtrain::parallel
