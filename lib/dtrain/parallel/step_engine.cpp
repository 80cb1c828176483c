#include "dtrain/parallel/step_engine.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/optim/global_norm.h"
#include "dtrain/parallel/data/replicate_axis.h"
#include "dtrain/param/initialise.h"

namespace dtrain::parallel {
namespace {

// (B, T) int64, a copy: the graph must not depend on the batch's lifetime.
at::Tensor tokens_of(const std::vector<std::int64_t>& tokens, const data::Batch& batch) {
  const auto options = at::TensorOptions().dtype(at::kLong);
  return at::from_blob(const_cast<std::int64_t*>(tokens.data()),
                       {batch.num_sequences, batch.length}, options)
      .clone();
}

MicrobatchInput input_of(const data::Batch& batch) {
  return {.ids = tokens_of(batch.inputs, batch),
          .targets = tokens_of(batch.targets, batch),
          .first_sample = batch.first_sample};
}

std::int64_t tokens_in(const data::Batch& batch) { return batch.num_sequences * batch.length; }

constexpr std::int64_t kNumFlags = 3;

void write_flags(const StepFlags& flags, const at::Tensor& slots) {
  auto* slot = slots.mutable_data_ptr<double>();
  slot[0] = flags.stop;
  slot[1] = flags.save;
  slot[2] = flags.busy;
}

StepFlags read_flags(const at::Tensor& slots) {
  const auto* slot = slots.const_data_ptr<double>();
  return {.stop = slot[0] > 0, .save = slot[1] > 0, .busy = slot[2] > 0};
}

double sum_in_order(const at::Tensor& values) {
  const auto* begin = values.const_data_ptr<double>();
  return std::accumulate(begin, begin + values.numel(), 0.0);
}

param::ArenaAllocator allocator_of(comm::World& world) {
  return [&world](std::int64_t bytes) { return world.allocate(bytes); };
}

checkpoint::Piece replicated_piece(std::string name, const at::Tensor& tensor,
                                   const comm::ProcessGroup& group) {
  const auto sizes = tensor.sizes().vec();
  return {.name = std::move(name),
          .global_shape = sizes,
          .box = checkpoint::format::whole(sizes),
          .tensor = tensor,
          .replica = {.index = group.rank(), .count = group.size()}};
}

}  // namespace

StepEngine::StepEngine(model::Model& model, comm::World& world, comm::ProcessGroup& data_group,
                       EngineOptions options)
    : model_(model),
      data_group_(data_group),
      options_(std::move(options)),
      layout_(model.parameters),
      parameters_(layout_, options_.dtype, allocator_of(world)),
      store_(layout_, options_.dtype, allocator_of(world), options_.grad_accum_steps,
             options_.reduction),
      optimizer_(layout_, model.parameters, options_.dtype, allocator_of(world), options_.adamw),
      data_axis_(std::make_unique<ReplicateAxis>(layout_, options_.dtype, store_, data_group,
                                                 ReplicateAxis::Options{})),
      runner_(model, parameters_, store_, {.seed = options_.seed, .frozen = options_.adamw.frozen}),
      actions_(sequential_actions(static_cast<std::int64_t>(model.blocks.size()),
                                  options_.grad_accum_steps)) {
  for (param::ParameterId id = 0; id < layout_.num_parameters(); ++id) {
    param::initialise(model.parameters[static_cast<std::size_t>(id)], options_.seed,
                      parameters_.view(id));
  }
  report_ = at::zeros({num_microbatches() + kNumFlags}, at::TensorOptions().dtype(at::kDouble));
}

std::int64_t StepEngine::num_microbatches() const {
  return options_.grad_accum_steps * data_group_.size();
}

StepLoss StepEngine::forward_backward(std::span<const data::Batch> microbatches, StepFlags flags) {
  DTRAIN_CHECK(static_cast<std::int64_t>(microbatches.size()) == options_.grad_accum_steps);
  global_tokens_ = tokens_in(microbatches.front()) * num_microbatches();
  report_.zero_();
  write_flags(flags, report_.slice(0, num_microbatches()));
  for (const Action& action : actions_) execute(action, microbatches);
  data_axis_->finish_backward();
  report_reduced_.wait();
  return {.sum_nll = sum_in_order(report_.slice(0, 0, num_microbatches())),
          .num_tokens = global_tokens_,
          .flags = read_flags(report_.slice(0, num_microbatches()))};
}

void StepEngine::execute(const Action& action, std::span<const data::Batch> microbatches) {
  if (action.kind == ActionKind::backward) {
    backward(action);
    return;
  }
  if (action.block == 0) {
    runner_.begin(action.microbatch,
                  input_of(microbatches[static_cast<std::size_t>(action.microbatch)]));
  }
  const at::Tensor token_losses = runner_.forward(action.block, action.microbatch);
  if (!token_losses.defined()) return;
  const std::int64_t slot = data_group_.rank() * options_.grad_accum_steps + action.microbatch;
  report_.select(0, slot).copy_(token_losses.sum(at::kDouble));
  if (action.microbatch + 1 == options_.grad_accum_steps) {
    // Early, so that it travels under the backward pass.
    report_reduced_ = data_group_.all_reduce(report_);
  }
}

void StepEngine::backward(const Action& action) {
  const bool is_last_microbatch = action.microbatch + 1 == options_.grad_accum_steps;
  const bool is_last_block = action.block + 1 == static_cast<std::int64_t>(model_.blocks.size());
  if (is_last_block) {
    store_.begin_microbatch(action.microbatch);
    if (is_last_microbatch) data_axis_->begin_last_backward();
  }
  // The mean over the global batch enters here, once; nothing divides later.
  runner_.backward(action.block, action.microbatch, 1.0 / static_cast<double>(global_tokens_),
                   [&](param::ParameterId id) {
                     store_.settle(id);
                     if (is_last_microbatch) data_axis_->after_last_use(id);
                   });
  if (action.block == 0 && !is_last_microbatch) store_.end_microbatch();
}

double StepEngine::clip_grad_norm(double max_norm) {
  const double norm = optim::global_norm(store_.gradients(), layout_, model_.parameters);
  const double factor = optim::clip_factor(norm, max_norm);
  if (std::isfinite(norm) && factor != 1.0) {
    at::Tensor flat = store_.gradients().flat();
    flat.mul_(factor);
  }
  return norm;
}

void StepEngine::optimizer_step(double learning_rate) {
  optimizer_.step(parameters_, store_.gradients(), learning_rate);
}

StepLoss StepEngine::evaluate(std::int64_t num_batches,
                              const std::function<data::Batch(std::int64_t)>& batch) {
  // Two numbers a batch, each in its slot: adding zeros is exact, so the order of the reduction
  // does not matter.
  at::Tensor slots = at::zeros({num_batches, 2}, at::TensorOptions().dtype(at::kDouble));
  for (std::int64_t slot = data_group_.rank(); slot < num_batches; slot += data_group_.size()) {
    const data::Batch current = batch(slot);
    const at::Tensor token_losses = runner_.evaluate(input_of(current));
    slots[slot][0].copy_(token_losses.sum(at::kDouble));
    slots[slot][1].fill_(static_cast<double>(tokens_in(current)));
  }
  data_group_.all_reduce(slots).wait();
  const at::Tensor columns = slots.t().contiguous();  // (2, num_batches)
  return {.sum_nll = sum_in_order(columns[0]),
          .num_tokens = static_cast<std::int64_t>(sum_in_order(columns[1]))};
}

checkpoint::State StepEngine::state() const {
  checkpoint::State state;
  const auto add = [&](std::string name, const at::Tensor& tensor) {
    state.push_back(replicated_piece(std::move(name), tensor, data_group_));
  };
  for (param::ParameterId id = 0; id < layout_.num_parameters(); ++id) {
    const std::string& name = model_.parameters[static_cast<std::size_t>(id)].name;
    add(checkpoint::kWeightPrefix + name, parameters_.view(id));
    add("optimizer.exp_avg." + name, optimizer_.first_moment().view(id));
    add("optimizer.exp_avg_sq." + name, optimizer_.second_moment().view(id));
  }
  add("optimizer.num_updates", optimizer_.num_updates());
  return state;
}

void StepEngine::load_state(checkpoint::Source& source) {
  const at::NoGradGuard no_grad;
  for (const checkpoint::Piece& piece : state()) source.read(piece);
}

void StepEngine::load_weights(checkpoint::Source& source) {
  const at::NoGradGuard no_grad;
  for (const checkpoint::Piece& piece : state()) {
    if (piece.name.starts_with(checkpoint::kWeightPrefix)) source.read(piece);
  }
}

}  // namespace dtrain::parallel
