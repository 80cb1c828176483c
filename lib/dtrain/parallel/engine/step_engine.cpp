#include "dtrain/parallel/engine/step_engine.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "dtrain/base/check.h"

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

std::vector<at::Tensor> views_of(const ParameterStore& parameters, std::int64_t count) {
  std::vector<at::Tensor> views;
  for (param::ParameterId id = 0; id < count; ++id) views.push_back(parameters.view(id));
  return views;
}

DataAxisOptions with_disk(DataAxisOptions options, param::DiskMemory* disk) {
  options.disk = disk;
  return options;
}

std::vector<param::ParameterId> frozen_of(const EngineOptions& options) {
  const auto frozen = optim::frozen_by(options.optimizer);
  return {frozen.begin(), frozen.end()};
}

std::size_t last_forward_of(std::span<const Action> actions) {
  const auto found = std::find_if(actions.rbegin(), actions.rend(), [](const Action& action) {
    return action.kind == ActionKind::forward;
  });
  DTRAIN_CHECK(found != actions.rend());
  return static_cast<std::size_t>(actions.rend() - found) - 1;
}

}  // namespace

StepEngine::StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
                       EngineOptions options)
    : StepEngine(model, world, groups, std::move(options), whole_parameters(model)) {}

StepEngine::StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
                       EngineOptions options, WholeParameters whole)
    : setup_(model, groups, std::move(options), std::move(whole)),
      actions_(engine_actions(model, setup_.options)),
      last_forward_(last_forward_of(actions_)),
      axis_(model, setup_.layout, setup_.groups.data, allocator_of(world), actions_,
            with_disk(axis_options(setup_.options), setup_.disk.get())),
      updater_(setup_),
      whole_(setup_, axis_.parameters(), updater_),
      runner_(model, views_of(axis_.parameters(), setup_.layout.num_parameters()),
              axis_.gradients(),
              {.seed = setup_.options.seed,
               .buffer_dtype = setup_.options.buffer_dtype,
               .frozen = frozen_of(setup_.options),
               .recompute = setup_.options.recompute,
               .settled_together =
                   setup_.options.stage.mixes_microbatches() ? setup_.options.grad_accum_steps : 1,
               .tensor_axis = groups.tensor_axis}) {
  if (groups.pipeline != nullptr) transfers_.emplace(*groups.pipeline);
  whole_.initialise();
  report_ = at::zeros({num_microbatches() + kNumFlags}, at::TensorOptions().dtype(at::kDouble));
}

std::int64_t StepEngine::num_microbatches() const {
  return setup_.options.grad_accum_steps * setup_.groups.data.all.size();
}

DataTraffic StepEngine::traffic() const {
  return data_traffic(setup_.layout, axis_.schedule(), axis_options(setup_.options));
}

data::MicrobatchDeal StepEngine::deal() const {
  const bool is_reduced_at_once = setup_.options.data.schedule.reduce_every_microbatch;
  return {.rank = setup_.groups.data.all.rank(),
          .grad_accum = setup_.options.grad_accum_steps,
          .interleave = is_reduced_at_once ? setup_.groups.data.num_shards() : 1};
}

StepLoss StepEngine::forward_backward(std::span<const data::Batch> microbatches, StepFlags flags) {
  DTRAIN_CHECK(static_cast<std::int64_t>(microbatches.size()) == setup_.options.grad_accum_steps);
  global_tokens_ = tokens_in(microbatches.front()) * num_microbatches();
  report_.zero_();
  write_flags(flags, report_.slice(0, num_microbatches()));
  for (std::size_t index = 0; index < actions_.size(); ++index) {
    axis_.before(index);
    execute(actions_[index], microbatches);
    axis_.after(index);
    // Early, so that it travels under the backward pass.
    if (index == last_forward_) report_reduced_ = setup_.groups.all().all_reduce(report_);
  }
  axis_.gradients().finish();
  sum_over_stages();
  if (transfers_) transfers_->finish();
  report_reduced_.wait();
  return {.sum_nll = sum_in_order(report_.slice(0, 0, num_microbatches())),
          .num_tokens = global_tokens_,
          .flags = read_flags(report_.slice(0, num_microbatches()))};
}

void StepEngine::execute(const Action& action, std::span<const data::Batch> microbatches) {
  const data::Batch& batch = microbatches[static_cast<std::size_t>(action.microbatch)];
  switch (action.kind) {
    case ActionKind::forward:
      return forward(action, batch);
    case ActionKind::backward:
      return backward(action);
    case ActionKind::recv_activation:
      return offer(Channel::activations, action, batch);
    case ActionKind::recv_gradient:
      return offer(Channel::gradients, action, batch);
    case ActionKind::send_activation:
      return transfers_->send(Channel::activations, runner_.take_activation(action.microbatch));
    case ActionKind::send_gradient:
      return transfers_->send(Channel::gradients, runner_.take_gradient(action.microbatch));
  }
}

void StepEngine::offer(Channel channel, const Action& action, const data::Batch& batch) {
  transfers_->offer(channel, action.block, action.microbatch,
                    {batch.num_sequences, batch.length, setup_.model.width},
                    setup_.options.compute_dtype);
}

bool StepEngine::takes_from_stage(std::int64_t block) const {
  return setup_.options.stage.begins_chunk(block) && !(block == 0 && setup_.model.takes_tokens);
}

bool StepEngine::gives_to_stage(std::int64_t block) const {
  const bool is_last = block + 1 == static_cast<std::int64_t>(setup_.model.blocks.size());
  return setup_.options.stage.ends_chunk(block, setup_.model) &&
         !(is_last && setup_.model.gives_losses);
}

void StepEngine::forward(const Action& action, const data::Batch& batch) {
  const auto& [kind, block, microbatch] = action;
  if (block == 0) runner_.begin(microbatch, input_of(batch));
  if (takes_from_stage(block)) {
    runner_.set_activation(microbatch, transfers_->wait(Channel::activations, block, microbatch));
  }
  const at::Tensor token_losses = runner_.forward(block, microbatch);
  if (!token_losses.defined() || !reports_losses()) return;
  report_.select(0, deal().number_of(microbatch)).copy_(token_losses.sum(at::kDouble));
}

void StepEngine::backward(const Action& action) {
  const auto& [kind, block, microbatch] = action;
  GradientReducer& gradients = axis_.gradients();
  const bool is_last_block = block + 1 == static_cast<std::int64_t>(setup_.model.blocks.size());
  const bool is_mixed = setup_.options.stage.mixes_microbatches();
  if (is_last_block && (!is_mixed || microbatch == 0)) gradients.begin_microbatch(microbatch);
  if (gives_to_stage(block)) {
    runner_.set_gradient(microbatch, transfers_->wait(Channel::gradients, block, microbatch));
  }
  // The mean over the global batch enters here, once; nothing divides later.
  const double seed = updater_.loss_scale() / static_cast<double>(global_tokens_);
  runner_.backward(block, microbatch, seed, [&](param::ParameterId id) { gradients.settle(id); });
  const bool is_last_microbatch = microbatch + 1 == setup_.options.grad_accum_steps;
  if (block == 0 && !is_last_microbatch && !is_mixed) gradients.end_microbatch();
}

// Every stage holds the sum over its own blocks.
void StepEngine::sum_over_stages() {
  std::vector<comm::Work> sums;
  for (const SharedParameters& shared : setup_.groups.shared) {
    std::int64_t last_unit = -1;
    for (const param::ParameterId id : shared.ids) {
      const std::int64_t unit = setup_.layout.unit_of(id);
      if (unit == last_unit) continue;
      last_unit = unit;
      const param::ElementRange own = setup_.layout.shard_range(unit, setup_.groups.data.shard());
      sums.push_back(shared.stages->all_reduce(gradients().slice(own)));
    }
  }
  for (comm::Work& sum : sums) sum.wait();
}

void StepEngine::optimizer_step(double learning_rate) {
  updater_.update(parameters(), gradients(), learning_rate);
  axis_.parameters().refresh();
}

std::optional<StepLoss> StepEngine::evaluate(const EvaluationPlan& plan) {
  const comm::ProcessGroup& ranks = setup_.groups.data.all;
  const std::int64_t stages =
      setup_.groups.pipeline == nullptr ? 1 : setup_.groups.pipeline->activations.size();
  EvaluationReports reports(setup_.groups.all(),
                            /*max_under_way=*/setup_.groups.all().size() == 1 ? 0 : stages);
  const std::int64_t round = ranks.size() * plan.batch_size;
  std::int64_t begin = 0;
  for (; begin < plan.num_sequences && !reports.is_stopped(); begin += round) {
    // A stage that is faster than the next one must not pile up what it sends.
    if (transfers_) transfers_->finish();
    const at::Tensor losses = reports.begin_round(std::min(round, plan.num_sequences - begin));
    const std::int64_t own = ranks.rank() * plan.batch_size;  // where this rank's batch begins
    const std::int64_t count = std::min(plan.batch_size, losses.numel() - own);
    if (count <= 0) {
      (void)evaluate_one(nullptr);
    } else {
      const data::Batch batch = plan.read(begin + own, count);
      const at::Tensor token_losses = evaluate_one(&batch);  // (B, T), where the stage gives losses
      if (reports_losses()) sum_rows(token_losses, losses.narrow(0, own, count));
    }
    reports.end_round(plan.wants_stop && plan.wants_stop());
  }
  if (transfers_) transfers_->finish();
  const double sum_nll = reports.finish();
  if (begin < plan.num_sequences) return std::nullopt;
  return StepLoss{.sum_nll = sum_nll, .num_tokens = plan.num_sequences * plan.length};
}

at::Tensor StepEngine::evaluate_one(const data::Batch* batch) {
  const MicrobatchInput input = batch == nullptr ? MicrobatchInput{} : input_of(*batch);
  at::Tensor x = input.ids;
  for (std::size_t index = 0; index < setup_.model.blocks.size(); ++index) {
    const auto block = static_cast<std::int64_t>(index);
    if (batch != nullptr && takes_from_stage(block)) {
      offer(Channel::activations, {ActionKind::recv_activation, block, 0}, *batch);
      x = transfers_->wait(Channel::activations, block, 0);
    }
    axis_.before_evaluation(index);
    if (batch != nullptr) x = runner_.evaluate(block, x, input);
    axis_.after_evaluation(index);
    if (batch != nullptr && gives_to_stage(block)) transfers_->send(Channel::activations, x);
  }
  return x;
}

}  // namespace dtrain::parallel
