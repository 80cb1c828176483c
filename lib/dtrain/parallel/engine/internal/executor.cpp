#include "dtrain/parallel/engine/internal/executor.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/trace.h"
#include "dtrain/device/out_of_memory.h"
#include "dtrain/parallel/engine/internal/activation_memory.h"
#include "dtrain/parallel/engine/internal/graph_runner.h"

namespace dtrain::parallel {
namespace {

// Copies values to a tensor (shape) int64 on the device: autograd graphs must not depend on the
// batch's lifetime. Pinned memory makes the transfer asynchronous.
at::Tensor on_device(std::span<const std::int64_t> values, at::IntArrayRef shape,
                     const comm::World& world) {
  const bool is_pinned = at::accelerator::isAccelerator(world.device().type());
  at::Tensor copy = at::empty(shape, at::TensorOptions().dtype(at::kLong).pinned_memory(is_pinned));
  std::copy(values.begin(), values.end(), copy.mutable_data_ptr<std::int64_t>());
  return copy.to(world.options(at::kLong), /*non_blocking=*/true);
}

MicrobatchInput input_of(const data::Batch& batch, const comm::World& world) {
  const std::array<std::int64_t, 2> rows{batch.num_sequences, batch.length};
  return {.ids = on_device(batch.inputs, rows, world),
          .targets = on_device(batch.targets, rows, world),
          .first_sample = on_device({&batch.first_sample, 1}, {}, world)};
}

// Returns the peak number of microbatches in flight.
std::int64_t peak_microbatches(std::span<const Action> step) {
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const Action& action : step) {
    if (action.kind == ActionKind::begin_microbatch) most = std::max(most, ++now);
    if (action.kind == ActionKind::end_microbatch) --now;
  }
  return most;
}

// Returns the largest number of gradient elements of any block.
std::int64_t largest_block(const model::Model& model, std::span<const param::ParameterId> frozen) {
  std::int64_t most = 0;
  for (const auto& block : model.blocks) {
    std::int64_t elements = 0;
    for (const param::ParameterId id : block->parameters()) {
      if (std::ranges::find(frozen, id) != frozen.end()) continue;
      elements += model.parameters[id].num_elements();
    }
    most = std::max(most, elements);
  }
  return most;
}

ReceivedInputs received_inputs(const model::Model& model, const EngineOptions& options,
                               const model::BatchShape& microbatch) {
  ReceivedInputs received{
      .bytes = param::bytes_of(microbatch.rows() * model.width, options.precision.compute)};
  for (const BlockId block : options.stage.chunk_begins) {
    if (block > BlockId(0) || !model.takes_tokens) received.blocks.push_back(block);
  }
  return received;
}

param::ArenaAllocator allocator_of(const EngineSetup& setup) {
  param::ArenaAllocator allocate = [&world = setup.world](std::int64_t bytes) {
    return world.allocate(bytes);
  };
  return setup.options.uses_graphs ? with_stable_addresses(std::move(allocate)) : allocate;
}

DataAxis make_axis(const EngineSetup& setup) {
  const ActionLists lists = engine_actions(setup.model, setup.options);
  DataAxisOptions options = axis_options(setup.options, lists);
  options.offload = setup.memory_of_masters();
  return {setup.model, setup.layout, setup.groups, allocator_of(setup), lists, options};
}

BlockRunner::Options runner_options(const EngineOptions& options) {
  return {.seed = options.seed,
          .buffer_dtype = options.precision.buffer,
          .frozen = options.frozen,
          .recompute = options.recompute};
}

// Returns the unit's first parameter that this rank holds.
param::ParameterId first_held(const param::ArenaLayout& layout, param::UnitId unit) {
  for (const param::ParameterId id : layout.parameters_of(unit)) {
    if (!layout.range(id).is_empty()) return id;
  }
  return layout.parameters_of(unit).front();
}

base::TracePart part_of(ActionKind kind) {
  if (kind == ActionKind::forward) return base::TracePart::forward;
  return kind == ActionKind::backward ? base::TracePart::backward : base::TracePart::other;
}

// "in the forward pass of block 2 (unit 1)".
std::string part_of(const EngineSetup& setup, const Action& action) {
  if (!is_compute(action.kind)) return "between two blocks of a step";
  const auto parameters = setup.model.blocks[action.block]->parameters();
  const std::string unit =
      parameters.empty()
          ? std::string()
          : fmt::format(" (unit {})", setup.layout.unit_of(parameters.front()).value());
  return fmt::format("in the {} pass of block {}{}",
                     action.kind == ActionKind::forward ? "forward" : "backward",
                     action.block.value(), unit);
}

// Returns the peak memory of a forward pass without graphs.
std::int64_t evaluation_memory(const BlockMemories& blocks) {
  std::int64_t most = 0;
  for (const model::BlockMemory& block : blocks) {
    most = std::max(most, block.forward_without_graph + block.output);
  }
  return most;
}

std::int64_t next(const comm::ProcessGroup& group) { return (group.rank() + 1) % group.size(); }

std::int64_t previous(const comm::ProcessGroup& group) {
  return (group.rank() + group.size() - 1) % group.size();
}

}  // namespace

comm::ProcessGroup& Transfers::group(TransferKind kind) const {
  return kind == TransferKind::activations ? groups_.along(mesh::Axis::pp) : groups_.pp_gradients();
}

void Transfers::post_receive(TransferKind kind, BlockId block, MicrobatchId microbatch,
                             at::IntArrayRef shape, const at::TensorOptions& options) {
  const comm::ProcessGroup& ranks = group(kind);
  const std::int64_t peer = kind == TransferKind::activations ? previous(ranks) : next(ranks);
  const at::Tensor buffer = at::empty(shape, options);
  const bool is_new = receives_[static_cast<std::size_t>(kind)]
                          .insert({{block, microbatch}, {buffer, group(kind).recv(buffer, peer)}})
                          .second;
  DTRAIN_CHECK(is_new, "block {} posted two receives for microbatch {}", block.value(),
               microbatch.value());
}

at::Tensor Transfers::take(TransferKind kind, BlockId block, MicrobatchId microbatch) {
  auto& receives = receives_[static_cast<std::size_t>(kind)];
  const auto found = receives.find({block, microbatch});
  if (found == receives.end()) return {};
  InFlightTensor received = std::move(found->second);
  receives.erase(found);
  received.work.wait();
  return received.tensor;
}

void Transfers::send(TransferKind kind, const at::Tensor& value) {
  while (!sends_.empty() && sends_.front().work.is_completed()) {
    sends_.front().work.wait();
    sends_.pop_front();
  }
  const at::Tensor sent = value.contiguous();
  const comm::ProcessGroup& ranks = group(kind);
  const std::int64_t peer = kind == TransferKind::activations ? next(ranks) : previous(ranks);
  sends_.push_back({sent, group(kind).send(sent, peer)});
}

void Transfers::finish() {
  for (InFlightTensor& send : sends_) send.work.wait();
  sends_.clear();
}

Executor::Executor(const EngineSetup& setup)
    : setup_(setup),
      axis_(make_axis(setup)),
      accumulator_(setup.model, axis_.gradients(),
                   setup.options.grad_accum_steps / num_gradient_sums(axis_.step().actions),
                   [this](param::ParameterId id) { axis_.gradients().mark_gradient_ready(id); }),
      runner_(setup.model, axis_.parameters().views(), accumulator_, *setup.tensor_axis,
              runner_options(setup.options)),
      transfers_(setup.groups) {
  if (!setup.options.uses_graphs) return;
  graphs_ = make_graph_runner(runner_, accumulator_, axis_.parameters().views(), setup);
}

MemoryPlan Executor::memory(const model::Model& model, const EngineOptions& options,
                            const model::BatchShape& microbatch) {
  const ActionLists lists = engine_actions(model, options);
  BlockMemories blocks;
  for (const auto& block : model.blocks) blocks.push_back(block->memory(microbatch));
  const MemoryPlan runner = activation_memory(blocks, lists.step, options.recompute,
                                              received_inputs(model, options, microbatch));
  MemoryPlan memory = runner + DataAxis::memory(model, engine_layout(model, options), lists.step,
                                                axis_options(options, lists));
  // Gradients are sent after activations were freed: one block's if units are reduced one by one,
  // else all.
  const std::int64_t freed = options.data.keeps_gradient_shards()
                                 ? runner.activations / blocks.size()
                                 : runner.activations;
  memory.units += std::max<std::int64_t>(0, memory.encoded_gradients - freed);
  // A block's gradients are held until its graph has run, and graphs use a memory pool of their
  // own.
  if (options.uses_graphs) {
    memory.work += param::bytes_of(largest_block(model, options.frozen), microbatch.dtype) +
                   evaluation_memory(blocks);
  }
  const std::int64_t tokens = 2 * microbatch.rows() + 1;  // ids, targets and first sample
  const at::ScalarType buffer = options.precision.buffer;
  const bool is_widened = model.widens_tables && at::isReducedFloatingType(buffer);
  memory.buffers += param::bytes_of(model.table_values, is_widened ? at::kFloat : buffer) +
                    param::bytes_of(peak_microbatches(lists.step) * tokens, at::kLong);
  return memory;
}

void Executor::step(const ExecutorInput& input) {
  runner_.set_training(true);
  if (graphs_) active_ = graphs_.get();
  run(axis_.step(), input);
  const base::Span span("finish gradients", base::TracePart::backward);
  axis_.gradients().finish();
  sum_over_stages();
  finish_sends();
}

void Executor::evaluate(const ExecutorInput& input) {
  finish_sends();  // bounds the sends in flight if this stage is faster than the next
  runner_.set_training(false);
  active_ = &runner_;
  run(axis_.evaluation(), input);
}

void Executor::run(const DataAxis::ScheduledActions& list, const ExecutorInput& input) {
  for (std::size_t index = 0; index < list.actions.size(); ++index) {
    device::with_oom_context(
        setup_.world.device(), [&] { return part_of(setup_, list.actions[index]); },
        [&] { run_action(list, index, input); });
  }
}

void Executor::run_action(const DataAxis::ScheduledActions& list, std::size_t index,
                          const ExecutorInput& input) {
  const Action& action = list.actions[index];
  const auto microbatch = static_cast<std::size_t>(action.microbatch.value());
  if (activity_ != nullptr && is_compute(action.kind)) {
    activity_->enter(action.kind == ActionKind::forward ? "the forward pass" : "the backward pass",
                     action.block.value());
  }
  const base::Span span(name_of(action.kind), part_of(action.kind), {"block", action.block.value()},
                        {"microbatch", action.microbatch.value()});
  axis_.before(list, index);
  if (action.kind == ActionKind::reduce_losses) {
    input.on_last_losses();
  } else if (microbatch < input.microbatches.size()) {
    execute(action, input.microbatches[microbatch], input);
  }
  axis_.after(list, index);
}

void Executor::execute(const Action& action, const data::Batch& batch, const ExecutorInput& input) {
  const auto& [kind, block, microbatch] = action;
  switch (kind) {
    case ActionKind::begin_microbatch:
      return active_->begin(microbatch, input_of(batch, setup_.world));
    case ActionKind::forward: {
      if (at::Tensor activation = transfers_.take(TransferKind::activations, block, microbatch);
          activation.defined()) {
        runner_.boundary(microbatch).activation = std::move(activation);
      }
      const at::Tensor losses = active_->forward(block, microbatch);
      // Tensor-parallel ranks compute the same losses; only the first one reports them.
      const bool reports = setup_.groups.along(mesh::Axis::tp).rank() == 0;
      if (losses.defined() && reports) input.on_losses(microbatch, losses);
      return;
    }
    case ActionKind::backward: {
      if (at::Tensor gradient = transfers_.take(TransferKind::gradients, block, microbatch);
          gradient.defined()) {
        runner_.boundary(microbatch).gradient = std::move(gradient);
      }
      return active_->backward(block, microbatch, input.loss_gradient);
    }
    case ActionKind::recv_activation:
      return post_receive(TransferKind::activations, action, batch);
    case ActionKind::recv_gradient:
      return post_receive(TransferKind::gradients, action, batch);
    case ActionKind::send_activation:
      return transfers_.send(TransferKind::activations,
                             std::exchange(runner_.boundary(microbatch).activation, {}));
    case ActionKind::send_gradient:
      return transfers_.send(TransferKind::gradients,
                             std::exchange(runner_.boundary(microbatch).gradient, {}));
    case ActionKind::begin_gradients:
      return axis_.gradients().begin_microbatch(microbatch);
    case ActionKind::end_gradients:
      return axis_.gradients().end_microbatch();
    case ActionKind::end_microbatch:
      return active_->end(microbatch);
    case ActionKind::reduce_losses:
      return;  // handled by run_action(), since it needs no microbatch
  }
}

void Executor::post_receive(TransferKind kind, const Action& action, const data::Batch& batch) {
  transfers_.post_receive(kind, action.block, action.microbatch,
                          {batch.num_sequences, batch.length, setup_.model.width},
                          setup_.world.options(setup_.options.precision.compute));
}

// Sums gradients of parameters that several stages hold; each stage has the sum over its own
// blocks.
void Executor::sum_over_stages() {
  std::vector<comm::Work> sums;
  for (const param::UnitId unit : setup_.layout.units()) {
    if (setup_.layout.is_frozen(unit)) continue;
    const param::ElementRange own = setup_.layout.shard_range(unit, setup_.shard());
    comm::ProcessGroup& stages = setup_.placement.stages(first_held(setup_.layout, unit));
    sums.push_back(stages.all_reduce(axis_.gradients().gradients().slice(own)));
  }
  for (comm::Work& sum : sums) sum.wait();
}

}  // namespace dtrain::parallel
