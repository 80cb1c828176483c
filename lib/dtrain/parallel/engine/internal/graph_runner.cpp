#include "dtrain/parallel/engine/internal/graph_runner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/device/graph.h"

namespace dtrain::parallel {
namespace {

void copy_into(MicrobatchInput& target, const MicrobatchInput& input) {
  target.ids.copy_(input.ids);
  target.targets.copy_(input.targets);
  target.first_sample.copy_(input.first_sample);
}

struct Slot {
  at::Tensor memory;  // (bytes) uint8
  bool is_used = false;
};

using SlotsBySize = std::map<std::int64_t, std::deque<Slot>>;

// Frees a slot when its last tensor is destroyed.
struct Lease {
  std::shared_ptr<SlotsBySize> slots;
  Slot* slot;

  ~Lease() { slot->is_used = false; }
};

class GraphRunner final : public PassRunner {
 public:
  GraphRunner(BlockRunner& runner, GradientAccumulator& gradients,
              const param::ParameterViews& parameters, const EngineSetup& setup)
      : runner_(runner),
        gradients_(gradients),
        parameters_(parameters),
        model_(setup.model),
        recompute_(setup.options.recompute),
        device_(setup.world.device()),
        recorder_(device::make_recorder(device_)) {
    for (const auto& block : model_.blocks) DTRAIN_CHECK(block->native_backward() == nullptr);
  }

  // Every step has the same passes in the same order, so microbatch 0 starts a step.
  void begin(MicrobatchId microbatch, const MicrobatchInput& input) override {
    if (microbatch == MicrobatchId(0)) begin_step(input);
    DTRAIN_CHECK(input.ids.sizes() == shape_);
    const auto [entry, is_new] = inputs_.try_emplace(microbatch, input);
    if (!is_new) copy_into(entry->second, input);
    if (phase_ != Phase::replaying) runner_.begin(microbatch, entry->second);
  }

  void end(MicrobatchId microbatch) override { runner_.end(microbatch); }

  at::Tensor forward(BlockId block, MicrobatchId microbatch) override {
    if (phase_ == Phase::warm_up) return runner_.forward(block, microbatch);
    Forward& pass = forwards_[{block, microbatch}];
    if (phase_ == Phase::recording) record(block, microbatch, pass);
    DTRAIN_CHECK(pass.addresses == addresses_of({block, block + 1}),
                 "block {}: its parameters are not at the addresses that the captured graph uses",
                 block.value());
    pass.graph->replay();
    return pass.losses;
  }

  void backward(BlockId block, MicrobatchId microbatch, double seed) override {
    if (phase_ == Phase::warm_up) return runner_.backward(block, microbatch, seed);
    const bool is_first = block + 1 == model_.blocks.end_id();
    if (is_first && !loss_gradient_.defined()) {
      loss_gradient_ = at::empty_like(forwards_.at({block, microbatch}).losses);
    }
    if (is_first) loss_gradient_.fill_(seed);
    Backward& pass = backwards_[{block, microbatch}];
    if (phase_ == Phase::recording) {
      if (is_first) runner_.boundary(microbatch).gradient = loss_gradient_;
      record(block, microbatch, seed, pass);
    }
    DTRAIN_CHECK(pass.addresses == addresses_of(blocks_of_backward(block)),
                 "block {}: its parameters are not at the addresses that the captured graph uses",
                 block.value());
    pass.graph->replay();
    for (const ParameterGradient& gradient : pass.gradients) gradients_.add(gradient);
  }

 private:
  enum class Phase { warm_up, recording, replaying };
  using Key = std::pair<BlockId, MicrobatchId>;
  // Addresses of a pass's parameters.
  using Addresses = std::vector<const void*>;

  struct Forward {
    std::unique_ptr<device::Graph> graph;
    Addresses addresses;
    at::Tensor losses;
  };
  struct Backward {
    std::unique_ptr<device::Graph> graph;
    Addresses addresses;
    std::vector<ParameterGradient> gradients;
  };

  void begin_step(const MicrobatchInput& input) {
    const bool is_first = inputs_.empty();
    if (!is_first && input.ids.sizes() == shape_) {
      phase_ = phase_ == Phase::warm_up ? Phase::recording : Phase::replaying;
      // Graphs use their own memory pool, so memory cached by the warm-up would stay unused.
      if (phase_ == Phase::recording) c10::getDeviceAllocator(device_.type())->emptyCache();
      return;
    }
    phase_ = Phase::warm_up;
    shape_ = input.ids.sizes().vec();
    forwards_.clear();
    backwards_.clear();
    inputs_.clear();
    loss_gradient_ = at::Tensor();
    if (!is_first) recorder_ = device::make_recorder(device_);
  }

  void record(BlockId block, MicrobatchId microbatch, Forward& pass) {
    pass.addresses = addresses_of({block, block + 1});
    at::Tensor losses;
    pass.graph = recorder_->record([&] { losses = runner_.forward(block, microbatch); });
    if (losses.defined()) pass.losses = device::non_owning_view(losses);
  }

  void record(BlockId block, MicrobatchId microbatch, double seed, Backward& pass) {
    pass.addresses = addresses_of(blocks_of_backward(block));
    pass.graph = recorder_->record([&] {
      runner_.compute(block, microbatch, seed, [&](const ParameterGradient& gradient) {
        pass.gradients.push_back(gradient);  // kept until the end, so that its memory is not reused
      });
    });
    for (ParameterGradient& gradient : pass.gradients) {
      if (gradient.value.defined()) gradient.value = device::non_owning_view(gradient.value);
    }
  }

  [[nodiscard]] Addresses addresses_of(model::BlockRange blocks) const {
    Addresses addresses;
    for (BlockId block = blocks.begin; block < blocks.end; ++block) {
      for (const param::ParameterId id : model_.blocks[block]->parameters()) {
        addresses.push_back(parameters_[id].const_data_ptr());
      }
    }
    return addresses;
  }

  [[nodiscard]] model::BlockRange blocks_of_backward(BlockId block) const {
    const RecomputeGroup* group = recompute_.group_of(block);
    return {group == nullptr ? block : group->begin, block + 1};
  }

  BlockRunner& runner_;
  GradientAccumulator& gradients_;
  const param::ParameterViews& parameters_;
  const model::Model& model_;
  const RecomputePlan& recompute_;
  c10::Device device_;
  Phase phase_ = Phase::warm_up;
  std::vector<std::int64_t> shape_;  // (B, T) of the step's microbatches
  // Shared by all passes of one shape.
  std::unique_ptr<device::GraphRecorder> recorder_;
  std::map<MicrobatchId, MicrobatchInput> inputs_;
  at::Tensor loss_gradient_;  // shaped like the losses
  std::map<Key, Forward> forwards_;
  std::map<Key, Backward> backwards_;
};

}  // namespace

param::ArenaAllocator with_stable_addresses(param::ArenaAllocator allocate) {
  return [allocate = std::move(allocate),
          slots = std::make_shared<SlotsBySize>()](std::int64_t bytes) -> at::Tensor {
    const at::NoGradGuard no_grad;
    std::deque<Slot>& all = (*slots)[bytes];
    const auto free = std::ranges::find(all, false, &Slot::is_used);
    if (free != all.end()) free->memory.zero_();
    Slot& slot = free != all.end() ? *free : all.emplace_back(Slot{allocate(bytes)});
    slot.is_used = true;
    return device::non_owning_view(slot.memory, new Lease{slots, &slot},
                                   [](void* owned) { delete static_cast<Lease*>(owned); });
  };
}

std::unique_ptr<PassRunner> make_graph_runner(BlockRunner& runner, GradientAccumulator& gradients,
                                              const param::ParameterViews& parameters,
                                              const EngineSetup& setup) {
  return std::make_unique<GraphRunner>(runner, gradients, parameters, setup);
}

}  // namespace dtrain::parallel
