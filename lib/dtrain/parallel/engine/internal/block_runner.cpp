#include "dtrain/parallel/engine/internal/block_runner.h"

#include <ATen/ops/full_like.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <optional>

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

// Simulated memory of one microbatch in a BlockRunner.
struct MicrobatchMemory {
  explicit MicrobatchMemory(std::int64_t num_blocks)
      : has_graph(num_blocks), has_input(num_blocks + 1) {}

  base::IndexedVector<BlockId, bool> has_graph;
  base::IndexedVector<BlockId, bool> has_input;  // is saved
  std::optional<BlockId> latest;                 // block that ran last, until its output is sent
  std::int64_t gradient = 0;                     // bytes of the last computed input gradient
};

// Simulates a BlockRunner's memory in a step: executes the step's passes with sizes instead of
// tensors.
class MemorySimulation {
 public:
  MemorySimulation(const BlockMemories& blocks, const RecomputePlan& recompute,
                   const ReceivedInputs& received)
      : blocks_(blocks), recompute_(recompute), received_(received) {}

  void run(const Action& action) {
    if (action.kind == ActionKind::forward) forward(action.block, action.microbatch);
    if (action.kind == ActionKind::backward) backward(action.block, action.microbatch);
    if (action.kind == ActionKind::send_activation) microbatches_.at(action.microbatch).latest = {};
  }

  [[nodiscard]] MemoryPlan result() const {
    return {.activations = saved_, .work = peak_ - saved_};
  }

 private:
  void forward(BlockId block, MicrobatchId microbatch) {
    MicrobatchMemory& memory = microbatches_.try_emplace(microbatch, blocks_.size()).first->second;
    const RecomputeGroup* group = group_of(block);
    memory.has_input[block] = group == nullptr || group->begin == block;
    memory.latest = block;
    pass(group == nullptr ? blocks_[block].forward : blocks_[block].forward_without_graph);
    memory.has_graph[block] = group == nullptr;
    saved_ = std::max(saved_, total());
  }

  void backward(BlockId block, MicrobatchId microbatch) {
    MicrobatchMemory& memory = microbatches_.at(microbatch);
    if (const RecomputeGroup* group = group_of(block)) recompute(block, *group, memory);
    pass(blocks_[block].backward - blocks_[block].saved);
    memory.has_graph[block] = memory.has_input[block] = false;
    memory.gradient = block > BlockId(0) ? blocks_[block - 1].output : 0;
    if (block == BlockId(0)) microbatches_.erase(microbatch);
  }

  void recompute(BlockId block, const RecomputeGroup& group, MicrobatchMemory& memory) {
    const bool is_first_backward = block + 1 == group.end;
    for (BlockId inner = group.begin; is_first_backward && inner < block; ++inner) {
      pass(blocks_[inner].forward_without_graph);
      memory.has_input[inner + 1] = true;
    }
    pass(blocks_[block].forward);
    memory.has_graph[block] = true;
  }

  [[nodiscard]] const RecomputeGroup* group_of(BlockId block) const {
    return recompute_.group_of(block);
  }

  [[nodiscard]] bool is_received(BlockId block) const {
    return std::count(received_.blocks.begin(), received_.blocks.end(), block) > 0;
  }

  [[nodiscard]] std::int64_t total() const {
    std::int64_t bytes = 0;
    for (const auto& [microbatch, memory] : microbatches_) {
      bytes += memory.gradient;
      for (const BlockId block : blocks_.ids()) {
        // An output is also the next block's input.
        const bool is_input = memory.has_input[block + 1] && !is_received(block + 1);
        const bool has_output = memory.has_graph[block] || is_input || memory.latest == block;
        bytes += (has_output ? blocks_[block].output : 0) +
                 (memory.has_graph[block] ? blocks_[block].saved : 0) +
                 (memory.has_input[block] && is_received(block) ? received_.bytes : 0);
      }
    }
    return bytes;
  }

  void pass(std::int64_t temporaries) { peak_ = std::max(peak_, total() + temporaries); }

  const BlockMemories& blocks_;
  const RecomputePlan& recompute_;
  const ReceivedInputs& received_;
  std::map<MicrobatchId, MicrobatchMemory> microbatches_;  // in flight
  std::int64_t saved_ = 0;
  std::int64_t peak_ = 0;
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
      num_backwards_(model.parameters.size()),
      tensor_axis_(axis) {
  for (const param::ParameterId id : parameters.ids()) {
    const bool is_frozen =
        std::find(options.frozen.begin(), options.frozen.end(), id) != options.frozen.end();
    leaves_.push_back(parameters[id].detach().set_requires_grad(!is_frozen));
  }
  for (const auto& block : model.blocks) {
    for (const param::ParameterId id : block->parameters()) {
      num_backwards_[id] += options.interleaved_microbatches;
    }
  }
  pending_backwards_ = num_backwards_;
}

void BlockRunner::begin(MicrobatchId microbatch, const MicrobatchInput& input) {
  Microbatch& entry = microbatches_[microbatch];
  entry = Microbatch{};
  entry.activation = input.ids;
  entry.input = input;
}

bool BlockRunner::computes_losses(BlockId block) const {
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
  return computes_losses(block) ? entry.activation : at::Tensor();
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

void BlockRunner::backward(BlockId block, MicrobatchId microbatch, double seed,
                           const OnGradientReady& on_gradient_ready) {
  compute(block, microbatch, seed,
          [&](const ParameterGradient& gradient) { accumulate(gradient, on_gradient_ready); });
}

void BlockRunner::compute(BlockId block, MicrobatchId microbatch, double seed,
                          const OnGradient& on_gradient) {
  Microbatch& entry = microbatches_.at(microbatch);
  recompute(block, entry);
  SavedBlock& saved = entry.saved.at(block);
  active_block_ = &saved;
  on_gradient_ = &on_gradient;
  const bool begins = computes_losses(block) && !entry.gradient.defined();
  const at::Tensor gradient = begins ? at::full_like(saved.output, seed) : entry.gradient;
  if (model::NativeBackward* native = model_.blocks[block]->native_backward()) {
    const at::NoGradGuard no_grad;
    entry.gradient = native->backward(
        saved.input, gradient, saved.native, context_of(entry.input, read_leaf_, no_tap_),
        [this](param::ParameterId id) {
          const bool is_frozen = !leaves_[id].requires_grad();
          return is_frozen ? param::GradientTarget{} : gradients_.gradient_of(id);
        });
  } else {
    const SingleThreadedAutograd backward;
    if (saved.output.requires_grad()) torch::autograd::backward({saved.output}, {gradient});
    entry.gradient = saved.input.grad();
  }
  // Complete uses without a gradient, and parameters that this block did not use.
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

void BlockRunner::accumulate(const ParameterGradient& gradient,
                             const OnGradientReady& on_gradient_ready) {
  if (gradient.value.defined()) gradients_.add_gradient(gradient.id, gradient.value);
  if (!gradient.is_last) return;
  std::int64_t& pending = pending_backwards_[gradient.id];
  if (--pending > 0) return;
  pending = num_backwards_[gradient.id];
  on_gradient_ready(gradient.id);
}

MemoryPlan BlockRunner::memory(const BlockMemories& blocks, std::span<const Action> actions,
                               const RecomputePlan& recompute, const ReceivedInputs& received) {
  MemorySimulation simulation(blocks, recompute, received);
  for (const Action& action : actions) simulation.run(action);
  return simulation.result();
}

}  // namespace dtrain::parallel
