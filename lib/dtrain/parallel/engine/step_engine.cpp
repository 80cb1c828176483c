#include "dtrain/parallel/engine/step_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/comm/long_task.h"
#include "dtrain/parallel/engine/disk_window.h"
#include "dtrain/parallel/engine/engine_state.h"
#include "dtrain/parallel/engine/equal_copies.h"
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

std::vector<at::Tensor> views_of(const ParameterStore& parameters, std::int64_t count) {
  std::vector<at::Tensor> views;
  for (param::ParameterId id = 0; id < count; ++id) views.push_back(parameters.view(id));
  return views;
}

std::unique_ptr<param::DiskMemory> make_disk(const std::string& folder) {
  return folder.empty() ? nullptr : std::make_unique<param::DiskMemory>(folder);
}

// Optimizer state is never communicated, so it need not lie where the backend communicates from.
param::ArenaAllocator state_allocator(param::DiskMemory* disk) {
  if (disk == nullptr) return param::private_memory;
  return [disk](std::int64_t bytes) { return disk->allocate(bytes); };
}

DataAxisOptions with_disk(DataAxisOptions options, param::DiskMemory* disk) {
  options.disk = disk;
  return options;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const param::ArenaLayout& layout,
                                                 const model::Model& model, std::int64_t shard,
                                                 const param::ArenaAllocator& allocate,
                                                 const EngineOptions& options) {
  return optim::make_optimizer({.layout = layout,
                                .specs = model.parameters,
                                .shard = shard,
                                .dtype = options.master_dtype,
                                .allocate = allocate},
                               options.optimizer);
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

param::ArenaLayout engine_layout(const model::Model& model, const EngineOptions& options) {
  return param::ArenaLayout(
      model.parameters,
      {.unit_begins = unit_begins(model, options.data.wrap, options.stage.region_begins),
       .num_shards = options.data.shard_size});
}

std::vector<Action> engine_actions(const model::Model& model, const EngineOptions& options) {
  if (!options.stage.actions.empty()) return options.stage.actions;
  return sequential_actions(static_cast<std::int64_t>(model.blocks.size()),
                            options.grad_accum_steps);
}

DataAxisOptions axis_options(const EngineOptions& options) {
  return {.plan = options.data,
          .master_dtype = options.master_dtype,
          .compute_dtype = options.compute_dtype,
          .reduce_dtype = options.reduce_dtype,
          .num_microbatches = options.stage.mixes_microbatches() ? 1 : options.grad_accum_steps,
          .reduction = options.reduction,
          .recompute = options.recompute};
}

StepEngine::StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
                       EngineOptions options)
    : StepEngine(model, world, groups, std::move(options), whole_parameters(model)) {}

StepEngine::StepEngine(model::Model& model, comm::World& world, const EngineGroups& groups,
                       EngineOptions options, WholeParameters whole)
    : model_(model),
      groups_(groups),
      options_(std::move(options)),
      placement_(model, std::move(whole), groups.tensor,
                 groups.pipeline == nullptr ? nullptr : &groups.pipeline->activations),
      layout_(engine_layout(model, options_)),
      disk_(make_disk(options_.disk_folder)),
      actions_(engine_actions(model, options_)),
      last_forward_(last_forward_of(actions_)),
      axis_(model, layout_, groups_.data, allocator_of(world), actions_,
            with_disk(axis_options(options_), disk_.get())),
      norm_(layout_, model.parameters, groups.data.shard()),
      optimizer_(make_optimizer(layout_, model, groups.data.shard(), state_allocator(disk_.get()),
                                options_)),
      runner_(
          model, views_of(axis_.parameters(), layout_.num_parameters()), axis_.gradients(),
          {.seed = options_.seed,
           .buffer_dtype = options_.buffer_dtype,
           .frozen = frozen_of(options_),
           .recompute = options_.recompute,
           .settled_together = options_.stage.mixes_microbatches() ? options_.grad_accum_steps : 1,
           .tensor_axis = groups.tensor_axis}) {
  DTRAIN_CHECK(groups.data.num_shards() == options_.data.shard_size);
  if (groups.pipeline != nullptr) transfers_.emplace(*groups.pipeline);
  initialise();
  report_ = at::zeros({num_microbatches() + kNumFlags}, at::TensorOptions().dtype(at::kDouble));
}

comm::ProcessGroup& StepEngine::world() const {
  return groups_.world == nullptr ? groups_.data.all : *groups_.world;
}

// One parameter at a time in full: less than a unit, which a step needs anyway.
void StepEngine::initialise() {
  const at::NoGradGuard no_grad;
  const auto dtype = at::TensorOptions().dtype(options_.master_dtype);
  for (param::ParameterId id = 0; id < layout_.num_parameters(); ++id) {
    const param::ElementRange whole = layout_.range(id);
    const at::Tensor values = at::empty(layout_.shape(id), dtype);
    param::initialise(model_.parameters[static_cast<std::size_t>(id)], options_.seed, values);
    const param::ElementRange own = layout_.range_in(id, groups_.data.shard());
    if (own.is_empty()) continue;
    const at::Tensor master = parameters().slice(own);
    master.copy_(values.view(-1).narrow(0, own.begin - whole.begin, own.size()));
    if (disk_ != nullptr) disk_->release(master);
  }
  axis_.parameters().refresh();
}

std::int64_t StepEngine::num_microbatches() const {
  return options_.grad_accum_steps * groups_.data.all.size();
}

DataTraffic StepEngine::traffic() const {
  return data_traffic(layout_, axis_.schedule(), axis_options(options_));
}

data::MicrobatchDeal StepEngine::deal() const {
  const bool is_reduced_at_once = options_.data.schedule.reduce_every_microbatch;
  return {.rank = groups_.data.all.rank(),
          .grad_accum = options_.grad_accum_steps,
          .interleave = is_reduced_at_once ? groups_.data.num_shards() : 1};
}

StepLoss StepEngine::forward_backward(std::span<const data::Batch> microbatches, StepFlags flags) {
  DTRAIN_CHECK(static_cast<std::int64_t>(microbatches.size()) == options_.grad_accum_steps);
  global_tokens_ = tokens_in(microbatches.front()) * num_microbatches();
  report_.zero_();
  write_flags(flags, report_.slice(0, num_microbatches()));
  for (std::size_t index = 0; index < actions_.size(); ++index) {
    axis_.before(index);
    execute(actions_[index], microbatches);
    axis_.after(index);
    // Early, so that it travels under the backward pass.
    if (index == last_forward_) report_reduced_ = world().all_reduce(report_);
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
                    {batch.num_sequences, batch.length, model_.width}, options_.compute_dtype);
}

bool StepEngine::takes_from_stage(std::int64_t block) const {
  return options_.stage.begins_chunk(block) && !(block == 0 && model_.takes_tokens);
}

bool StepEngine::gives_to_stage(std::int64_t block) const {
  const bool is_last = block + 1 == static_cast<std::int64_t>(model_.blocks.size());
  return options_.stage.ends_chunk(block, model_) && !(is_last && model_.gives_losses);
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
  const bool is_last_block = block + 1 == static_cast<std::int64_t>(model_.blocks.size());
  const bool is_mixed = options_.stage.mixes_microbatches();
  if (is_last_block && (!is_mixed || microbatch == 0)) gradients.begin_microbatch(microbatch);
  if (gives_to_stage(block)) {
    runner_.set_gradient(microbatch, transfers_->wait(Channel::gradients, block, microbatch));
  }
  // The mean over the global batch enters here, once; nothing divides later.
  const double seed = loss_scale() / static_cast<double>(global_tokens_);
  runner_.backward(block, microbatch, seed, [&](param::ParameterId id) { gradients.settle(id); });
  const bool is_last_microbatch = microbatch + 1 == options_.grad_accum_steps;
  if (block == 0 && !is_last_microbatch && !is_mixed) gradients.end_microbatch();
}

// Every stage holds the sum over its own blocks.
void StepEngine::sum_over_stages() {
  std::vector<comm::Work> sums;
  for (const SharedParameters& shared : groups_.shared) {
    std::int64_t last_unit = -1;
    for (const param::ParameterId id : shared.ids) {
      const std::int64_t unit = layout_.unit_of(id);
      if (unit == last_unit) continue;
      last_unit = unit;
      const param::ElementRange own = layout_.shard_range(unit, groups_.data.shard());
      sums.push_back(shared.stages->all_reduce(gradients().slice(own)));
    }
  }
  for (comm::Work& sum : sums) sum.wait();
}

double StepEngine::norm_of(const param::Arena& values) {
  const at::Tensor sums = norm_.sums_of(values);
  if (groups_.data.shards != nullptr) groups_.data.shards->all_reduce(sums).wait();
  return placement_.norm(norm_.squares(sums));
}

double StepEngine::loss_scale() const { return options_.scales_loss ? scaler_.scale() : 1.0; }

double StepEngine::clip_grad_norm(double max_norm) {
  const double norm = norm_of(gradients()) / loss_scale();
  const double factor = optim::clip_factor(norm, max_norm) / loss_scale();
  if (std::isfinite(norm) && factor != 1.0) {
    for (const param::ElementRange own : layout_.owned_by(groups_.data.shard())) {
      gradients().slice(own).mul_(factor);
    }
  }
  return norm;
}

bool StepEngine::has_overflowed(double grad_norm) {
  if (!options_.scales_loss) return false;
  const bool overflowed = !std::isfinite(grad_norm);
  scaler_.update(overflowed);
  return overflowed;
}

void StepEngine::optimizer_step(double learning_rate) {
  if (disk_ == nullptr) {
    optimizer_->step(parameters(), gradients(), learning_rate);
  } else {
    std::vector<const param::Arena*> arenas{&parameters()};
    for (const optim::NamedArena& part : optimizer_->state()) arenas.push_back(part.arena);
    DiskWindow window(*disk_, std::move(arenas));
    optimizer_->step(parameters(), gradients(), learning_rate, &window);
    window.finish();
  }
  axis_.parameters().refresh();
}

std::optional<StepLoss> StepEngine::evaluate(const EvaluationPlan& plan) {
  const comm::ProcessGroup& ranks = groups_.data.all;
  const std::int64_t stages =
      groups_.pipeline == nullptr ? 1 : groups_.pipeline->activations.size();
  EvaluationReports reports(world(), /*max_under_way=*/world().size() == 1 ? 0 : stages);
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
  for (std::size_t index = 0; index < model_.blocks.size(); ++index) {
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

void StepEngine::make_copies_equal() {
  axis_.parameters().wait_for_all();  // what the last update has sent on its way is read there
  std::vector<const param::Arena*> arenas{&parameters()};
  for (const optim::NamedArena& part : optimizer_->state()) arenas.push_back(part.arena);
  parallel::make_copies_equal({.model = model_,
                               .layout = layout_,
                               .data = groups_.data,
                               .tensor = groups_.tensor,
                               .shared = groups_.shared},
                              arenas);
  axis_.parameters().refresh();
}

checkpoint::State StepEngine::state() const {
  return pieces_of({.model = model_,
                    .layout = layout_,
                    .data = groups_.data,
                    .world = world(),
                    .placement = placement_,
                    .masters = parameters(),
                    .optimizer = *optimizer_,
                    .scaler = scaler()});
}

void StepEngine::load_state(checkpoint::Source& source) {
  const checkpoint::State pieces = state();
  comm::run_long(world(), "reading a checkpoint", [&] {
    const at::NoGradGuard no_grad;
    for (const checkpoint::Piece& piece : pieces) {
      // A run that goes on in float16 starts with a scale of its own.
      if (piece.name == kLossScale && !source.has(piece.name)) continue;
      source.read(piece);
    }
  });
  const at::NoGradGuard no_grad;
  axis_.parameters().refresh();
}

void StepEngine::load_weights(checkpoint::Source& source) {
  const checkpoint::State pieces = state();
  comm::run_long(world(), "reading weights", [&] {
    const at::NoGradGuard no_grad;
    for (const checkpoint::Piece& piece : pieces) {
      if (piece.name.starts_with(checkpoint::kWeightPrefix)) source.read(piece);
    }
  });
  const at::NoGradGuard no_grad;
  axis_.parameters().refresh();
}

at::Tensor StepEngine::gathered_unit(const param::Arena& values, std::int64_t unit) {
  const param::ElementRange range = layout_.unit_range(unit);
  comm::ProcessGroup* shards = groups_.data.shards;
  if (shards == nullptr) return values.slice(range);
  const at::Tensor whole = at::empty({range.size()}, values.flat().options());
  shards->all_gather(values.slice(layout_.shard_range(unit, shards->rank())), whole).wait();
  return whole;
}

void StepEngine::visit_whole(const param::Arena& values, const Visit& visit) {
  axis_.parameters().wait_for_all();  // whole masters may still be on their way
  const WholeParameters& whole = placement_.whole();
  param::ParameterId id = 0;  // of this rank's parameters, which ascend with their numbers
  std::int64_t gathered = -1;
  at::Tensor unit;  // (elements of the unit `gathered`)
  for (std::size_t number = 0; number < whole.specs.size(); ++number) {
    const auto wanted = static_cast<param::ParameterId>(number);
    at::Tensor part;  // (this rank's slice)
    if (id < layout_.num_parameters() && whole.numbers[static_cast<std::size_t>(id)] == wanted) {
      if (std::exchange(gathered, layout_.unit_of(id)) != layout_.unit_of(id)) {
        unit = gathered_unit(values, gathered);
      }
      const param::ElementRange range = layout_.range(id);
      const std::int64_t begin = range.begin - layout_.unit_range(gathered).begin;
      part = unit.narrow(0, begin, range.size()).view(layout_.shape(id));
      ++id;
    }
    visit(wanted, placement_.assembled(wanted, part, values.flat().options()));
  }
}

}  // namespace dtrain::parallel
