#include "dtrain/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

#include "dtrain/base/error.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/values/batch.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/compress/all_reducer.h"
#include "dtrain/parallel/pipeline/check.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::planner {
namespace {

using mesh::Axis;

// Latency between nodes in seconds; most networks have 2 to 50 microseconds.
constexpr double kNodeLatency = 10e-6;

// Collective calls over a group of ranks with this stride.
struct Traffic {
  std::int64_t group = 1;  // ranks
  std::int64_t stride = 1;
  double calls = 0;
  double bytes = 0;  // sent per rank
};

class RankStep {
 public:
  RankStep(const config::Config& config, const parallel::RankPlan& plan)
      : config_(config), plan_(plan), mesh_(config::mesh_of(config.layout)) {}

  [[nodiscard]] double microbatches() const {
    return static_cast<double>(plan_.options.grad_accum_steps);
  }
  [[nodiscard]] double rows() const {
    return static_cast<double>(config_.batch.microbatch * config_.data.seq_len);
  }
  [[nodiscard]] std::vector<Traffic> traffic() const {
    return {shard_traffic(), replica_traffic(), tensor_traffic(), pipeline_traffic(),
            shared_parameter_traffic()};
  }

  // Returns the elements that the optimizer updates, over all shards.
  [[nodiscard]] double trained_elements() const {
    double elements = 0;
    for (const param::ParameterId id : plan_.units.parameters()) {
      if (plan_.units.is_frozen(id)) continue;
      elements += static_cast<double>(plan_.units.range(id).size());
    }
    return elements;
  }

 private:
  [[nodiscard]] std::int64_t shard_size() const { return plan_.options.data.shard_size; }
  [[nodiscard]] double trained_units() const {
    double count = 0;
    for (const param::UnitId unit : plan_.units.units())
      count += plan_.units.is_frozen(unit) ? 0 : 1;
    return count;
  }

  [[nodiscard]] Traffic shard_traffic() const {
    const parallel::DataTraffic& found = plan_.traffic;
    return {.group = shard_size(),
            .stride = mesh_.stride(Axis::dp),
            .calls = static_cast<double>(found.gathers + found.reductions),
            .bytes = static_cast<double>(found.gather_bytes + found.reduction_bytes)};
  }
  // Gradient all-reduces over replicas.
  [[nodiscard]] Traffic replica_traffic() const {
    const std::int64_t replicas = mesh_[Axis::dp] / shard_size();
    if (replicas == 1) return {};
    const std::int64_t stride = mesh_.stride(Axis::dp) * shard_size();
    const parallel::Compression& compression = plan_.options.data.compression;
    if (!compression.scheme.is_none()) {
      const parallel::SchemeCosts costs =
          parallel::CompressedAllReducer::costs(parallel::replica_reduction(plan_), replicas);
      return {.group = replicas,
              .stride = stride,
              .calls = static_cast<double>(costs.calls),
              .bytes = static_cast<double>(costs.sent)};
    }
    const double gradients = static_cast<double>(plan_.units.num_trained() / shard_size()) *
                             static_cast<double>(c10::elementSize(plan_.options.precision.reduce));
    return {.group = replicas,
            .stride = stride,
            .calls = trained_units(),
            .bytes = gradients * ring_share(replicas)};
  }
  [[nodiscard]] Traffic tensor_traffic() const {
    const std::int64_t ranks = mesh_[Axis::tp];
    if (ranks == 1) return {};
    double values = 0;
    double calls = 0;
    for (const model::BlockCost& cost : plan_.model->costs) {
      values += cost.reduced_values_per_token;
      if (cost.reduced_values_per_token > 0) calls += 2;  // forward and backward
    }
    return {.group = ranks,
            .stride = mesh_.stride(Axis::tp),
            .calls = calls * microbatches(),
            .bytes = 4 * values * rows() * microbatches() * ring_share(ranks)};
  }
  // Each chunk sends an activation to the next part and a gradient to the previous one.
  [[nodiscard]] Traffic pipeline_traffic() const {
    const std::int64_t stages = mesh_[Axis::pp];
    if (stages == 1) return {};
    std::int64_t sent = 0;  // per microbatch
    for (std::int64_t chunk = 0; chunk < plan_.place.shape.chunks(); ++chunk) {
      const std::int64_t part = chunk * stages + plan_.place.stage;
      sent += (part > 0 ? 1 : 0) + (part + 1 < plan_.place.shape.num_parts() ? 1 : 0);
    }
    const double messages = microbatches() * static_cast<double>(sent);
    const double bytes = rows() * static_cast<double>(plan_.model->width) *
                         static_cast<double>(c10::elementSize(plan_.options.precision.compute));
    return {.group = stages,
            .stride = mesh_.stride(Axis::pp),
            .calls = 2 * messages,
            .bytes = messages * bytes};
  }
  // Gradient all-reduces over stages that share parameters.
  [[nodiscard]] Traffic shared_parameter_traffic() const {
    const parallel::ParameterHolders& holders = plan_.options.stage.holders;
    if (holders.empty()) return {};
    Traffic sums{.group = 1, .stride = mesh_.stride(Axis::pp)};
    std::optional<param::UnitId> last;
    for (const param::ParameterId id : plan_.units.parameters()) {
      const std::int64_t elements = plan_.units.range(id).size() / shard_size();
      const auto ranks = std::ssize(holders[id]);
      if (elements <= 0 || ranks == 1 || plan_.units.is_frozen(id)) continue;
      if (last != plan_.units.unit_of(id)) ++sums.calls;
      last = plan_.units.unit_of(id);
      sums.group = std::max<std::int64_t>(sums.group, ranks);
      sums.bytes += static_cast<double>(param::bytes_of(elements, plan_.options.precision.master)) *
                    ring_share(ranks);
    }
    return sums;
  }

  const config::Config& config_;
  const parallel::RankPlan& plan_;
  mesh::MeshShape mesh_;
};

double seconds_of(const Traffic& traffic, const Cluster& cluster, const Rates& rates) {
  if (traffic.calls == 0) return 0;
  const bool crosses = traffic.stride * traffic.group > cluster.ranks_per_node;
  LinkRate link = rates.measured == nullptr ? LinkRate{} : rates.measured->link();
  if (crosses && rates.link_bytes_per_second > 0) {
    link = {kNodeLatency, rates.link_bytes_per_second};
  }
  const double sending = link.bytes_per_second == 0 ? 0 : traffic.bytes / link.bytes_per_second;
  return traffic.calls * link.latency + sending;
}

// Returns the times of the whole model, split by the tensor axis of `config`.
ComputeTimes compute_times(const config::Config& config, const model::Model& whole,
                           const Rates& rates) {
  if (rates.flops == 0) return rates.measured->compute(config);
  const double tokens = static_cast<double>(config.batch.microbatch * config.data.seq_len);
  const double flops = tokens * whole.training_flops_per_token();
  return {.pass = flops / static_cast<double>(config.layout.tp) / rates.flops};
}

// Returns the stages that may be largest or slowest: the ends hold embedding and head, a middle one
// only layers.
std::vector<std::int64_t> candidate_stages(std::int64_t stages) {
  std::vector<std::int64_t> all{0};
  if (stages > 2) all.push_back(stages / 2);
  if (stages > 1) all.push_back(stages - 1);
  return all;
}

Prediction predict_stage(const config::Config& config, std::int64_t stage,
                         const model::Model& whole, const Cluster& cluster, const Rates& rates) {
  const parallel::RankPlan plan =
      parallel::rank_plan(config, {{Axis::pp, stage}, {Axis::dp, 0}, {Axis::tp, 0}});
  const RankStep step(config, plan);
  const ComputeTimes times = compute_times(config, whole, rates);
  const double share = plan.model->training_flops_per_token() / whole.training_flops_per_token();
  const double again = 1 + plan.flops.recomputed / plan.flops.passes;
  const double trained = step.trained_elements() / static_cast<double>(whole.num_elements()) *
                         static_cast<double>(config.layout.tp);
  const auto shards = static_cast<double>(plan.options.data.shard_size);
  Prediction found{.memory = plan.memory.peak(),
                   .compute = step.microbatches() * times.pass * share * again,
                   .update = times.update * std::min(1.0, trained) / shards};
  if (plan.place.shape.stages > 1) {
    found.bubble = simulate(plan.place.shape, make_pipeline_schedule(plan.place.shape)).bubble;
  }
  found.waiting = found.bubble * found.compute;
  for (const Traffic& traffic : step.traffic()) {
    found.bytes_sent += traffic.bytes;
    found.communication += seconds_of(traffic, cluster, rates);
  }
  return found;
}

// Predicts a step over all stages. config: resolved.
//
// Throws: as parallel::rank_plan.
Prediction predict(const config::Config& config, const Cluster& cluster, const Rates& rates) {
  const auto whole = model::make_model(config.model, config.data.seq_len, {},
                                       parallel::compute_options_of(config.machine));
  Prediction most;
  for (const std::int64_t stage : candidate_stages(config.layout.pp)) {
    const Prediction found = predict_stage(config, stage, *whole, cluster, rates);
    const std::int64_t memory = std::max(most.memory, found.memory);
    if (found.seconds() > most.seconds()) most = found;
    most.memory = memory;
  }
  return most;
}

using Outcome = std::variant<RankedLayout, RejectedLayout>;

// Returns the layout's text without its last flag, the microbatch.
std::string without_microbatch(const Layout& layout) {
  Layout rest = layout;
  rest.flags.pop_back();
  return fmt::format("{} {}", layout.ranks, rest.text());
}

RejectedLayout reject_for_memory(const Layout& layout, const config::Config& config,
                                 std::int64_t bytes, const parallel::AvailableMemory& available) {
  const std::int64_t limit = available.bytes / std::max<std::int64_t>(1, available.ranks);
  return {.layout = layout,
          .reason = fmt::format("needs {} per rank, more than the limit of {}",
                                metrics::format_bytes(bytes), metrics::format_bytes(limit)),
          .config = config,
          .memory = bytes,
          .available = available};
}

Outcome evaluate_layout(const config::Config& requested, const Layout& layout,
                        const Cluster& cluster, const Rates& rates, const MemoryLimits& memory) {
  try {
    const config::Config config = resolve_with_layout(requested, layout, cluster);
    const std::int64_t on_node = std::min(layout.ranks, cluster.ranks_per_node);
    const std::int64_t limit = memory.of_rank(on_node);
    // Layouts that do not fit are not measured.
    Prediction found = predict(config, cluster, rates.without_measurements());
    if (found.memory > limit) {
      const bool is_shared = memory.is_shared(on_node);
      return reject_for_memory(layout, config, found.memory,
                               is_shared ? parallel::AvailableMemory{limit * on_node, on_node}
                                         : parallel::AvailableMemory{limit, 0});
    }
    if (rates.measured != nullptr) found = predict(config, cluster, rates);
    return RankedLayout{layout, config, found};
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    return RejectedLayout{.layout = layout, .reason = error.what()};
  }
}

// Rounds to float, so that predictions that differ only by rounding compare equal.
float speed_of(const RankedLayout& choice) {
  return static_cast<float>(choice.tokens_per_second());
}

// A layout regardless of microbatch: its best microbatch, or why none fits.
struct Candidate {
  std::string name;
  std::optional<RankedLayout> choice;
  std::optional<RejectedLayout> rejection;

  // True if memory is insufficient; larger microbatches need even more.
  [[nodiscard]] bool exceeds_memory() const { return rejection && rejection->config; }

  // outcome:        of a larger microbatch than those added before.
  // prefers_larger: on ties takes the larger microbatch, up to the automatic maximum.
  void add(Outcome outcome, bool prefers_larger) {
    if (auto* found = std::get_if<RejectedLayout>(&outcome)) {
      rejection = std::move(*found);
      return;
    }
    RankedLayout& found = std::get<RankedLayout>(outcome);
    const bool is_preferred = choice && prefers_larger && speed_of(found) == speed_of(*choice) &&
                              found.config.batch.microbatch <= config::kMaxAutomaticMicrobatch;
    if (!choice || is_preferred || speed_of(found) > speed_of(*choice)) choice = std::move(found);
  }
};

}  // namespace

Ranking rank_layouts(const config::Config& requested, const Cluster& cluster, const Rates& rates,
                     const MemoryLimits& memory,
                     const std::function<void(const std::string&)>& progress) {
  const std::vector<std::int64_t> all_ranks = rank_counts(requested, cluster.cores);
  config::Config open = requested;
  config::resolve_auto_layout_batch(open.batch, std::ranges::max(all_ranks));
  std::vector<Candidate> candidates;
  for (const std::int64_t ranks : all_ranks) {
    for (const Layout& layout : enumerate_layouts(open, ranks, cluster)) {
      const std::string name = without_microbatch(layout);
      if (candidates.empty() || candidates.back().name != name) {
        candidates.push_back({.name = name, .choice = {}, .rejection = {}});
      }
      Candidate& candidate = candidates.back();
      if (candidate.exceeds_memory()) continue;
      progress(fmt::format("{} ranks: {}", ranks, layout.text()));
      candidate.add(evaluate_layout(open, layout, cluster, rates, memory), rates.flops > 0);
    }
  }
  Ranking ranking;
  for (Candidate& candidate : candidates) {
    if (candidate.choice) {
      ranking.choices.push_back(std::move(*candidate.choice));
    } else {
      ranking.rejected.push_back(std::move(*candidate.rejection));
    }
  }
  std::ranges::stable_sort(ranking.choices, std::greater{}, speed_of);
  return ranking;
}

const RejectedLayout& Ranking::closest_rejected() const {
  const auto bytes = [](const RejectedLayout& rejection) {
    return rejection.config ? rejection.memory : std::numeric_limits<std::int64_t>::max();
  };
  return *std::ranges::min_element(rejected, {}, bytes);
}

}  // namespace dtrain::planner
