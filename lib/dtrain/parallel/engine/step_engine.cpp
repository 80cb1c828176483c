#include "dtrain/parallel/engine/step_engine.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/trace.h"
#include "dtrain/data/loader.h"
#include "dtrain/device/operator.h"
#include "dtrain/device/out_of_memory.h"

namespace dtrain::parallel {
namespace {

// Moves the prediction of offloaded state from the device to the host or disk.
MemoryPlan offloaded(MemoryPlan memory, const model::Model& model, const EngineOptions& options) {
  const bool is_on_device = options.offload.kind != config::Offload::Kind::disk;
  std::int64_t moved = std::exchange(memory.optimizer, 0);
  if (options.offloads_masters()) moved += std::exchange(memory.parameters, 0);
  if (!is_on_device) return memory;
  memory.host += moved;
  if (options.offloads_masters()) {  // a unit shard in transit
    memory.units +=
        param::bytes_of(engine_layout(model, options).largest_unit() / options.data.shard_size,
                        options.precision.master);
  }
  // Activations have been freed when the update runs.
  memory.work = std::max(memory.work,
                         Updater::window_bytes(model, options) - memory.activations - memory.units);
  return memory;
}

}  // namespace

LossReducer::LossReducer(const EngineSetup& setup, std::int64_t num_losses, std::size_t num_votes)
    : setup_(setup),
      num_losses_(num_losses),
      slots_(at::zeros({num_losses + static_cast<std::int64_t>(num_votes)},
                       setup.world.options(at::kDouble))) {}

void LossReducer::reduce(const Votes& votes) {
  DTRAIN_CHECK(num_losses_ + std::ssize(votes) == slots_.numel());
  for (std::size_t vote = 0; vote < votes.size(); ++vote) {
    if (votes[vote]) slots_[num_losses_ + static_cast<std::int64_t>(vote)].fill_(1.0);
  }
  reduced_ = setup_.groups.world().all_reduce(slots_);
}

LossReducer::Totals LossReducer::read(double before, const at::Tensor& extra) {
  wait();
  // (losses + votes + n) float64
  const at::Tensor all = (extra.defined() ? at::cat({slots_, extra}) : slots_).cpu();
  reduced_.wait_host();  // throws if the reduction was aborted, which leaves `all` undefined
  const auto* number = all.const_data_ptr<double>();
  Totals found{.sum = std::accumulate(number, number + num_losses_, before)};
  std::transform(number + num_losses_, number + slots_.numel(), std::back_inserter(found.votes),
                 [](double count) { return count > 0; });
  found.values.assign(number + slots_.numel(), number + all.numel());
  return found;
}

StepEngine::StepEngine(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
                       EngineOptions options)
    : setup_(model, world, groups, std::move(options)),
      executor_(setup_),
      updater_(setup_),
      whole_model_(setup_, executor_.parameters(), executor_.axis().gradients(), updater_) {
  whole_model_.initialise();
}

MemoryPlan StepEngine::memory(const model::Model& model, const EngineOptions& options,
                              const model::BatchShape& microbatch) {
  MemoryPlan memory =
      Executor::memory(model, options, microbatch) + Updater::memory(model, options);
  return options.offload.kind == config::Offload::Kind::none ? memory
                                                             : offloaded(memory, model, options);
}

data::MicrobatchAssignment StepEngine::microbatch_assignment() const {
  const bool is_reduced_at_once = setup_.options.data.schedule.reduce_every_microbatch;
  const comm::ProcessGroup& ranks = setup_.groups.along(mesh::Axis::dp);
  return {.rank = ranks.rank(),
          .num_ranks = ranks.size(),
          .grad_accum = setup_.options.grad_accum_steps,
          .interleave = is_reduced_at_once ? setup_.groups.shards().size() : 1};
}

double StepEngine::parameter_norm() {
  executor_.parameters().wait_for_all();  // gathers may still be in flight
  return updater_.norm_of(parameters()).item<double>();
}

void StepEngine::forward_backward(std::span<const data::Batch> microbatches, const Votes& votes,
                                  bool compresses) {
  const data::MicrobatchAssignment own = microbatch_assignment();
  DTRAIN_CHECK(std::ssize(microbatches) == own.grad_accum);
  const data::Batch& first = microbatches.front();
  const std::int64_t num_tokens = first.num_sequences * first.length * own.num_microbatches();
  Step& step = step_.emplace(
      Step{.losses = {setup_, own.num_microbatches(), votes.size()}, .num_tokens = num_tokens});
  executor_.axis().gradients().begin_step(
      {.compresses = compresses, .loss_scale = updater_.loss_scale()});
  executor_.step({.microbatches = microbatches,
                  // The division by the global batch's tokens happens here only.
                  .loss_gradient = updater_.loss_scale() / static_cast<double>(num_tokens),
                  .on_losses =
                      [&](MicrobatchId microbatch, const at::Tensor& losses) {
                        step.losses.losses()[own.number_of(microbatch)].copy_(
                            device::ordered_sum(losses).sum());
                      },
                  .on_last_losses = [&] { step.losses.reduce(votes); }});
  step.losses.wait();
}

void StepEngine::clip_grad_norm(double max_norm) {
  const base::Span span("norm and clipping", base::TracePart::clip);
  step_->norm = updater_.clip(gradients(), max_norm);
}

void StepEngine::optimizer_step(double learning_rate, const StepLimits& limits) {
  const base::Span span("update", base::TracePart::update);
  step_->updates = true;
  at::Tensor may_update =  // () bool
      at::isfinite(step_->losses.losses()).all().logical_and_(at::isfinite(step_->norm));
  if (limits.any()) {
    const double sum = limits.loss * static_cast<double>(step_->num_tokens);
    step_->within =
        step_->losses.losses().sum().le(sum).logical_and_(step_->norm.le(limits.grad_norm));
    may_update = may_update.logical_and_(step_->within);
  }
  device::with_oom_context(
      setup_.world.device(), [] { return "in the update"; },
      [&] {
        ParameterStore& store = executor_.parameters();
        updater_.update(parameters(), gradients(), learning_rate, may_update,
                        [&](std::int64_t end) { store.refresh_trained_to(end); });
        store.refresh_trained();
      });
}

StepResult StepEngine::finish_step() {
  const base::Span span("read findings", base::TracePart::other);
  at::Tensor extra;  // (0 to 2) float64: norm, within
  if (step_->norm.defined()) extra = step_->norm.view(1);
  if (step_->within.defined()) extra = at::cat({extra, step_->within.to(at::kDouble).view(1)});
  LossReducer::Totals found = step_->losses.read(0, extra);
  StepResult result{.loss = {.sum_nll = found.sum,
                             .num_tokens = step_->num_tokens,
                             .votes = std::move(found.votes)},
                    .grad_norm = found.values.empty() ? 0 : found.values.front()};
  result.exceeds_limits = step_->within.defined() && result.is_finite() && found.values.back() == 0;
  if (step_->norm.defined()) result.has_overflowed = updater_.adjust_scale(result.grad_norm);
  executor_.axis().gradients().end_step(step_->updates && result.is_finite() &&
                                        !result.exceeds_limits);
  step_.reset();
  return result;
}

StepResult StepEngine::train_step(std::span<const data::Batch> microbatches,
                                  const StepOptions& options) {
  forward_backward(microbatches, options.votes, options.compresses);
  clip_grad_norm(options.max_norm);
  if (options.learning_rate) optimizer_step(*options.learning_rate, options.limits);
  return finish_step();
}

std::optional<StepLoss> StepEngine::evaluate(const EvaluationPlan& plan) {
  const comm::ProcessGroup& ranks = setup_.groups.along(mesh::Axis::dp);
  comm::ProcessGroup& world = setup_.groups.world();
  const std::int64_t max_in_flight =
      world.size() == 1 ? 0 : setup_.groups.mesh().size(mesh::Axis::pp);
  const std::int64_t round = ranks.size() * plan.batch_size;
  const std::int64_t own =
      ranks.rank() * plan.batch_size;  // offset of this rank's batch in a round
  std::deque<LossReducer> in_flight;   // rounds whose losses are being reduced
  double sum = 0;                      // over completed rounds
  // A rank voted to stop in a completed round; equal on all ranks.
  bool is_stopped = false;
  const auto limit_in_flight = [&](std::int64_t num_in_flight) {
    for (; std::ssize(in_flight) > num_in_flight; in_flight.pop_front()) {
      const LossReducer::Totals found = in_flight.front().read(sum);
      sum = found.sum;
      is_stopped = is_stopped || found.votes.front();
    }
  };
  std::int64_t begin = 0;
  for (; begin < plan.num_sequences && !is_stopped; begin += round) {
    LossReducer reducer(setup_, std::min(round, plan.num_sequences - begin), /*num_votes=*/1);
    const std::int64_t count = std::min(plan.batch_size, reducer.losses().numel() - own);
    std::vector<data::Batch> batches;  // empty if no sequences are left for this rank
    if (count > 0) batches.push_back(plan.read(begin + own, count));
    executor_.evaluate(
        {.microbatches = batches,
         .on_losses =
             [&](MicrobatchId, const at::Tensor& losses) {
               reducer.losses().narrow(0, own, count).copy_(device::ordered_sum(losses));
             },
         .on_last_losses = [&] { reducer.reduce({plan.wants_stop && plan.wants_stop()}); }});
    in_flight.push_back(std::move(reducer));
    limit_in_flight(max_in_flight);
  }
  executor_.finish_sends();
  limit_in_flight(0);
  if (begin < plan.num_sequences) return std::nullopt;
  return StepLoss{.sum_nll = sum, .num_tokens = plan.num_sequences * plan.length};
}

std::optional<double> StepEngine::evaluate(const data::EvaluationSequences& sequences,
                                           std::int64_t batch_size,
                                           const std::function<bool()>& wants_stop) {
  const std::optional<StepLoss> loss = evaluate(
      {.num_sequences = sequences.size(),
       .length = sequences.length(),
       .batch_size = batch_size,
       .read = [&](std::int64_t first, std::int64_t count) { return sequences.read(first, count); },
       .wants_stop = wants_stop});
  return loss ? std::optional(loss->mean()) : std::nullopt;
}

}  // namespace dtrain::parallel
