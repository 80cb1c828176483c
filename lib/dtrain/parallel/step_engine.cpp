#include "dtrain/parallel/step_engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "dtrain/base/check.h"
#include "dtrain/parallel/disk_window.h"
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
constexpr const char* kLossScale = "optimizer.loss_scale";

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

checkpoint::Replica replica_of(const comm::ProcessGroup* group) {
  if (group == nullptr) return {};
  return {.index = group->rank(), .count = group->size()};
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
                                                 const model::Model& model,
                                                 const DataGroups& groups,
                                                 const param::ArenaAllocator& allocate,
                                                 const EngineOptions& options) {
  return optim::make_optimizer({.layout = layout,
                                .specs = model.parameters,
                                .shard = groups.shard(),
                                .dtype = options.master_dtype,
                                .allocate = allocate},
                               options.optimizer);
}

std::vector<param::ParameterId> frozen_of(const EngineOptions& options) {
  const auto frozen = optim::frozen_by(options.optimizer);
  return {frozen.begin(), frozen.end()};
}

}  // namespace

param::ArenaLayout engine_layout(const model::Model& model, const EngineOptions& options) {
  return param::ArenaLayout(model.parameters, {.unit_begins = unit_begins(model, options.data.wrap),
                                               .num_shards = options.data.shard_size});
}

DataAxisOptions axis_options(const EngineOptions& options) {
  return {.plan = options.data,
          .master_dtype = options.master_dtype,
          .compute_dtype = options.compute_dtype,
          .reduce_dtype = options.reduce_dtype,
          .num_microbatches = options.grad_accum_steps,
          .reduction = options.reduction,
          .recompute = options.recompute};
}

StepEngine::StepEngine(model::Model& model, comm::World& world, const DataGroups& groups,
                       EngineOptions options)
    : model_(model),
      groups_(groups),
      options_(std::move(options)),
      layout_(engine_layout(model, options_)),
      disk_(make_disk(options_.disk_folder)),
      actions_(sequential_actions(static_cast<std::int64_t>(model.blocks.size()),
                                  options_.grad_accum_steps)),
      axis_(model, layout_, groups, allocator_of(world), actions_,
            with_disk(axis_options(options_), disk_.get())),
      norm_(layout_, model.parameters, groups.shard()),
      optimizer_(make_optimizer(layout_, model, groups, state_allocator(disk_.get()), options_)),
      runner_(model, views_of(axis_.parameters(), layout_.num_parameters()), axis_.gradients(),
              {.seed = options_.seed,
               .buffer_dtype = options_.buffer_dtype,
               .frozen = frozen_of(options_),
               .recompute = options_.recompute}) {
  DTRAIN_CHECK(groups.num_shards() == options_.data.shard_size);
  initialise();
  report_ = at::zeros({num_microbatches() + kNumFlags}, at::TensorOptions().dtype(at::kDouble));
}

// One parameter at a time in full: less than a unit, which a step needs anyway.
void StepEngine::initialise() {
  const at::NoGradGuard no_grad;
  const auto dtype = at::TensorOptions().dtype(options_.master_dtype);
  for (param::ParameterId id = 0; id < layout_.num_parameters(); ++id) {
    const param::ElementRange whole = layout_.range(id);
    const at::Tensor values = at::empty(layout_.shape(id), dtype);
    param::initialise(model_.parameters[static_cast<std::size_t>(id)], options_.seed, values);
    const param::ElementRange own = layout_.range_in(id, groups_.shard());
    if (own.is_empty()) continue;
    const at::Tensor master = parameters().slice(own);
    master.copy_(values.view(-1).narrow(0, own.begin - whole.begin, own.size()));
    if (disk_ != nullptr) disk_->release(master);
  }
  axis_.parameters().refresh();
}

std::int64_t StepEngine::num_microbatches() const {
  return options_.grad_accum_steps * groups_.all.size();
}

DataTraffic StepEngine::traffic() const {
  return data_traffic(layout_, axis_.schedule(), axis_options(options_));
}

data::MicrobatchDeal StepEngine::deal() const {
  return {.rank = groups_.all.rank(),
          .grad_accum = options_.grad_accum_steps,
          .interleave = options_.data.schedule.reduce_every_microbatch ? groups_.num_shards() : 1};
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
  }
  axis_.gradients().finish();
  report_reduced_.wait();
  return {.sum_nll = sum_in_order(report_.slice(0, 0, num_microbatches())),
          .num_tokens = global_tokens_,
          .flags = read_flags(report_.slice(0, num_microbatches()))};
}

void StepEngine::execute(const Action& action, std::span<const data::Batch> microbatches) {
  if (action.kind == ActionKind::backward) return backward(action);
  forward(action, microbatches);
}

void StepEngine::forward(const Action& action, std::span<const data::Batch> microbatches) {
  if (action.block == 0) {
    runner_.begin(action.microbatch,
                  input_of(microbatches[static_cast<std::size_t>(action.microbatch)]));
  }
  const at::Tensor token_losses = runner_.forward(action.block, action.microbatch);
  if (!token_losses.defined()) return;
  report_.select(0, deal().number_of(action.microbatch)).copy_(token_losses.sum(at::kDouble));
  if (action.microbatch + 1 == options_.grad_accum_steps) {
    // Early, so that it travels under the backward pass.
    report_reduced_ = groups_.all.all_reduce(report_);
  }
}

void StepEngine::backward(const Action& action) {
  GradientReducer& gradients = axis_.gradients();
  const bool is_last_block = action.block + 1 == static_cast<std::int64_t>(model_.blocks.size());
  if (is_last_block) gradients.begin_microbatch(action.microbatch);
  // The mean over the global batch enters here, once; nothing divides later.
  const double seed = loss_scale() / static_cast<double>(global_tokens_);
  runner_.backward(action.block, action.microbatch, seed,
                   [&](param::ParameterId id) { gradients.settle(id); });
  const bool is_last_microbatch = action.microbatch + 1 == options_.grad_accum_steps;
  if (action.block == 0 && !is_last_microbatch) gradients.end_microbatch();
}

double StepEngine::norm_of(const param::Arena& values) {
  const at::Tensor sums = norm_.sums_of(values);
  if (groups_.shards != nullptr) groups_.shards->all_reduce(sums).wait();
  return norm_.from_sums(sums);
}

double StepEngine::loss_scale() const { return options_.scales_loss ? scaler_.scale() : 1.0; }

double StepEngine::clip_grad_norm(double max_norm) {
  const double norm = norm_of(gradients()) / loss_scale();
  const double factor = optim::clip_factor(norm, max_norm) / loss_scale();
  if (std::isfinite(norm) && factor != 1.0) {
    for (const param::ElementRange own : layout_.owned_by(groups_.shard())) {
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

StepLoss StepEngine::evaluate(std::int64_t num_batches,
                              const std::function<data::Batch(std::int64_t)>& batch) {
  // Two numbers a batch, each in its slot: adding zeros is exact, so the order of the reduction
  // does not matter.
  at::Tensor slots = at::zeros({num_batches, 2}, at::TensorOptions().dtype(at::kDouble));
  const std::int64_t size = groups_.all.size();
  for (std::int64_t round = 0; round * size < num_batches; ++round) {
    const std::int64_t slot = round * size + groups_.all.rank();
    if (slot >= num_batches) {
      (void)evaluate_one(nullptr);
      continue;
    }
    const data::Batch current = batch(slot);
    slots[slot][0].copy_(evaluate_one(&current).sum(at::kDouble));
    slots[slot][1].fill_(static_cast<double>(tokens_in(current)));
  }
  groups_.all.all_reduce(slots).wait();
  const at::Tensor columns = slots.t().contiguous();  // (2, num_batches)
  return {.sum_nll = sum_in_order(columns[0]),
          .num_tokens = static_cast<std::int64_t>(sum_in_order(columns[1]))};
}

at::Tensor StepEngine::evaluate_one(const data::Batch* batch) {
  const MicrobatchInput input = batch == nullptr ? MicrobatchInput{} : input_of(*batch);
  at::Tensor x = input.ids;
  for (std::size_t block = 0; block < model_.blocks.size(); ++block) {
    axis_.before_evaluation(block);
    if (batch != nullptr) x = runner_.evaluate(static_cast<std::int64_t>(block), x, input);
    axis_.after_evaluation(block);
  }
  return x;
}

checkpoint::State StepEngine::state() const {
  checkpoint::State state;
  const bool is_whole = layout_.num_shards() == 1;
  const checkpoint::Replica replica = replica_of(is_whole ? &groups_.all : groups_.replicas);
  const auto add = [&](const std::string& prefix, param::ParameterId id,
                       const param::Arena& arena) {
    const param::ElementRange whole = layout_.range(id);
    const param::ElementRange own = layout_.range_in(id, groups_.shard());
    if (own.is_empty()) return;
    const at::IntArrayRef shape = layout_.shape(id);
    std::int64_t begin = own.begin;
    for (checkpoint::Box& box :
         checkpoint::format::boxes_of_run(shape, own.begin - whole.begin, own.end - whole.begin)) {
      const std::int64_t end = begin + checkpoint::format::num_elements(box.sizes);
      const at::Tensor values = arena.slice({begin, end}).view(box.sizes);
      begin = end;
      state.push_back({.name = prefix + model_.parameters[static_cast<std::size_t>(id)].name,
                       .global_shape = shape.vec(),
                       .box = std::move(box),
                       .tensor = values,
                       .replica = replica});
    }
  };
  for (param::ParameterId id = 0; id < layout_.num_parameters(); ++id) {
    add(checkpoint::kWeightPrefix, id, parameters());
    for (const optim::NamedArena& part : optimizer_->state()) {
      add("optimizer." + part.name + ".", id, *part.arena);
    }
  }
  state.push_back({.name = "optimizer.num_updates",
                   .global_shape = {1},
                   .box = checkpoint::format::whole(std::vector<std::int64_t>{1}),
                   .tensor = optimizer_->num_updates(),
                   .replica = replica_of(&groups_.all)});
  if (options_.scales_loss) {
    state.push_back({.name = kLossScale,
                     .global_shape = {scaler_.state().numel()},
                     .box = checkpoint::format::whole(scaler_.state().sizes()),
                     .tensor = scaler_.state(),
                     .replica = replica_of(&groups_.all)});
  }
  return state;
}

void StepEngine::load_state(checkpoint::Source& source) {
  const at::NoGradGuard no_grad;
  for (const checkpoint::Piece& piece : state()) {
    // A run that goes on in float16 starts with a scale of its own.
    if (piece.name == kLossScale && !source.has(piece.name)) continue;
    source.read(piece);
  }
  axis_.parameters().refresh();
}

void StepEngine::load_weights(checkpoint::Source& source) {
  const at::NoGradGuard no_grad;
  for (const checkpoint::Piece& piece : state()) {
    if (piece.name.starts_with(checkpoint::kWeightPrefix)) source.read(piece);
  }
  axis_.parameters().refresh();
}

void StepEngine::visit_units(const param::Arena& values, const Visit& visit) {
  axis_.parameters().wait_for_all();  // whole masters may still be on their way
  for (std::int64_t unit = 0; unit < layout_.num_units(); ++unit) {
    const param::ElementRange range = layout_.unit_range(unit);
    at::Tensor whole;  // (elements of the unit)
    if (groups_.shards == nullptr) {
      whole = values.slice(range);
    } else {
      whole = at::empty({range.size()}, values.flat().options());
      groups_.shards->all_gather(values.slice(layout_.shard_range(unit, groups_.shard())), whole)
          .wait();
    }
    for (const param::ParameterId id : layout_.parameters_of(unit)) {
      const param::ElementRange part = layout_.range(id);
      visit(id, whole.narrow(0, part.begin - range.begin, part.size()).view(layout_.shape(id)));
    }
  }
}

}  // namespace dtrain::parallel
