#include "dtrain/parallel/engine/step_engine.h"

#include <utility>

#include "dtrain/base/check.h"

namespace dtrain::parallel {
namespace {

std::int64_t tokens_in(const data::Batch& batch) { return batch.num_sequences * batch.length; }

}  // namespace

StepEngine::StepEngine(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
                       EngineOptions options)
    : StepEngine(model, world, groups, std::move(options), whole_parameters(model)) {}

StepEngine::StepEngine(model::Model& model, comm::World& world, const mesh::MeshGroups& groups,
                       EngineOptions options, WholeParameters whole)
    : setup_(model, groups, std::move(options), std::move(whole)),
      executor_(setup_, world),
      updater_(setup_),
      whole_(setup_, executor_.parameters(), updater_) {
  whole_.initialise();
}

std::int64_t StepEngine::num_microbatches() const {
  return setup_.options.grad_accum_steps * setup_.groups.along(mesh::Axis::dp).size();
}

DataTraffic StepEngine::traffic() const {
  return data_traffic(setup_.layout, data_axis().step().schedule,
                      axis_options(setup_.options, engine_actions(setup_.model, setup_.options)));
}

data::MicrobatchDeal StepEngine::deal() const {
  const bool is_reduced_at_once = setup_.options.data.schedule.reduce_every_microbatch;
  return {.rank = setup_.groups.along(mesh::Axis::dp).rank(),
          .grad_accum = setup_.options.grad_accum_steps,
          .interleave = is_reduced_at_once ? setup_.groups.shards().size() : 1};
}

StepLoss StepEngine::forward_backward(std::span<const data::Batch> microbatches,
                                      const Votes& votes) {
  DTRAIN_CHECK(static_cast<std::int64_t>(microbatches.size()) == setup_.options.grad_accum_steps);
  const std::int64_t num_tokens = tokens_in(microbatches.front()) * num_microbatches();
  LossReport report(setup_.groups.world(), num_microbatches(), votes.size());
  executor_.step({.microbatches = microbatches,
                  // The mean over the global batch enters here, once; nothing divides later.
                  .loss_gradient = updater_.loss_scale() / static_cast<double>(num_tokens),
                  .on_losses =
                      [&](std::int64_t microbatch, const at::Tensor& losses) {
                        report.losses()[deal().number_of(microbatch)].copy_(
                            losses.sum(at::kDouble));
                      },
                  .on_last_losses = [&] { report.reduce(votes); }});
  return {.sum_nll = report.sum(), .num_tokens = num_tokens, .votes = report.votes()};
}

StepResult StepEngine::train_step(std::span<const data::Batch> microbatches,
                                  const StepOptions& options) {
  StepResult result{.loss = forward_backward(microbatches, options.votes)};
  result.grad_norm = clip_grad_norm(options.max_norm);
  result.has_overflowed = updater_.has_overflowed(result.grad_norm);
  if (result.is_finite() && options.learning_rate) {
    updater_.update(parameters(), gradients(), *options.learning_rate);
    executor_.parameters().refresh();
  }
  return result;
}

}  // namespace dtrain::parallel
