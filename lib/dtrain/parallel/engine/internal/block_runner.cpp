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

// Stands for a BlockRunner's entry of one microbatch.
struct Held {
  explicit Held(std::int64_t num_blocks) : has_graph(num_blocks), has_input(num_blocks + 1) {}

  base::IndexedVector<BlockId, bool> has_graph;
  base::IndexedVector<BlockId, bool> has_input;  // it is kept
  std::optional<BlockId> latest;                 // what ran last, until its output is sent on
  std::int64_t gradient = 0;                     // of the input of the block that ran backward last
};

// Follows what a BlockRunner holds in a step, in sizes instead of tensors: runs the step's passes as
// the runner does.
class Walk {
 public:
  Walk(const BlockMemories& blocks, const RecomputePlan& recompute, const ReceivedInputs& received)
      : blocks_(blocks), recompute_(recompute), received_(received) {}

  void run(const Action& action) {
    if (action.kind == ActionKind::forward) forward(action.block, action.microbatch);
    if (action.kind == ActionKind::backward) backward(action.block, action.microbatch);
    if (action.kind == ActionKind::send_activation) microbatches_.at(action.microbatch).latest = {};
  }

  [[nodiscard]] MemoryPlan result() const { return {.activations = kept_, .work = peak_ - kept_}; }

 private:
  void forward(BlockId block, MicrobatchId microbatch) {
    Held& held = microbatches_.try_emplace(microbatch, blocks_.size()).first->second;
    const RecomputeGroup* group = group_of(block);
    held.has_input[block] = group == nullptr || group->begin == block;
    held.latest = block;
    pass(group == nullptr ? blocks_[block].forward : blocks_[block].forward_without_graph);
    held.has_graph[block] = group == nullptr;
    kept_ = std::max(kept_, total());
  }

  void backward(BlockId block, MicrobatchId microbatch) {
    Held& held = microbatches_.at(microbatch);
    if (const RecomputeGroup* group = group_of(block)) run_again(block, *group, held);
    pass(blocks_[block].backward - blocks_[block].saved);
    held.has_graph[block] = held.has_input[block] = false;
    held.gradient = block > BlockId(0) ? blocks_[block - 1].output : 0;
    if (block == BlockId(0)) microbatches_.erase(microbatch);
  }

  void run_again(BlockId block, const RecomputeGroup& group, Held& held) {
    const bool is_first_back = block + 1 == group.end;
    for (BlockId inner = group.begin; is_first_back && inner < block; ++inner) {
      pass(blocks_[inner].forward_without_graph);
      held.has_input[inner + 1] = true;
    }
    pass(blocks_[block].forward);
    held.has_graph[block] = true;
  }

  [[nodiscard]] const RecomputeGroup* group_of(BlockId block) const {
    return recompute_.group_of(block);
  }

  [[nodiscard]] bool is_received(BlockId block) const {
    return std::count(received_.blocks.begin(), received_.blocks.end(), block) > 0;
  }

  [[nodiscard]] std::int64_t total() const {
    std::int64_t bytes = 0;
    for (const auto& [microbatch, held] : microbatches_) {
      bytes += held.gradient;
      for (const BlockId block : blocks_.ids()) {
        // An output is the next block's input too.
        const bool is_input = held.has_input[block + 1] && !is_received(block + 1);
        const bool has_output = held.has_graph[block] || is_input || held.latest == block;
        bytes += (has_output ? blocks_[block].output : 0) +
                 (held.has_graph[block] ? blocks_[block].saved : 0) +
                 (held.has_input[block] && is_received(block) ? received_.bytes : 0);
      }
    }
    return bytes;
  }

  void pass(std::int64_t on_top) { peak_ = std::max(peak_, total() + on_top); }

  const BlockMemories& blocks_;
  const RecomputePlan& recompute_;
  const ReceivedInputs& received_;
  std::map<MicrobatchId, Held> microbatches_;  // under way
  std::int64_t kept_ = 0;
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
          return is_frozen ? param::GradientTarget{} : gradients_.gradient_of(id);
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

MemoryPlan BlockRunner::memory(const BlockMemories& blocks, std::span<const Action> actions,
                               const RecomputePlan& recompute, const ReceivedInputs& received) {
  Walk walk(blocks, recompute, received);
  for (const Action& action : actions) walk.run(action);
  return walk.result();
}

}  // namespace dtrain::parallel
