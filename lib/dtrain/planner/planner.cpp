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
#include "dtrain/parallel/compress/rank_sum.h"
#include "dtrain/parallel/pipeline/check.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::planner {
namespace {

using mesh::Axis;

// Between nodes; that of most networks lies between 2 and 50 microseconds.
constexpr double kLatencyOfNodes = 10e-6;

// Calls along ranks that lie `stride` apart.
struct Traffic {
  std::int64_t group = 1;  // ranks
  std::int64_t stride = 1;
  double calls = 0;
  double bytes = 0;  // that a rank sends
};

class StepOfRank {
 public:
  StepOfRank(const config::Config& config, const parallel::RankPlan& plan)
      : config_(config), plan_(plan), mesh_(config::mesh_of(config.layout)) {}

  [[nodiscard]] double microbatches() const {
    return static_cast<double>(plan_.options.grad_accum_steps);
  }
  [[nodiscard]] double rows() const {
    return static_cast<double>(config_.batch.microbatch * config_.data.seq_len);
  }
  [[nodiscard]] std::vector<Traffic> traffic() const {
    return {of_shards(), of_replicas(), of_tensor_axis(), of_pipeline(), of_stages()};
  }

  // Elements that the optimizer updates, of all shards.
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

  [[nodiscard]] Traffic of_shards() const {
    const parallel::DataTraffic& found = plan_.traffic;
    return {.group = shard_size(),
            .stride = mesh_.stride(Axis::dp),
            .calls = static_cast<double>(found.gathers + found.reductions),
            .bytes = static_cast<double>(found.gather_bytes + found.reduction_bytes)};
  }
  // Sums of gradients over ranks that hold the same part.
  [[nodiscard]] Traffic of_replicas() const {
    const std::int64_t replicas = mesh_[Axis::dp] / shard_size();
    if (replicas == 1) return {};
    const std::int64_t stride = mesh_.stride(Axis::dp) * shard_size();
    const parallel::Compression& compression = plan_.options.data.compression;
    if (!compression.scheme.is_none()) {
      const parallel::SchemeCosts costs =
          parallel::CompressedSum::costs(parallel::sums_over_replicas(plan_), replicas);
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
  [[nodiscard]] Traffic of_tensor_axis() const {
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
  // Of each chunk an activation to the next part of the model and a gradient to the one before.
  [[nodiscard]] Traffic of_pipeline() const {
    const std::int64_t stages = mesh_[Axis::pp];
    if (stages == 1) return {};
    std::int64_t sent = 0;  // of a microbatch
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
  // Sums of gradients over the stages that hold the same parameters.
  [[nodiscard]] Traffic of_stages() const {
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

double seconds_of(const Traffic& traffic, const Site& site, const Rates& rates) {
  if (traffic.calls == 0) return 0;
  const bool crosses = traffic.stride * traffic.group > site.ranks_per_node;
  LinkRate link = rates.measured == nullptr ? LinkRate{} : rates.measured->link();
  if (crosses && rates.link_bytes_per_second > 0) {
    link = {kLatencyOfNodes, rates.link_bytes_per_second};
  }
  const double sending = link.bytes_per_second == 0 ? 0 : traffic.bytes / link.bytes_per_second;
  return traffic.calls * link.latency + sending;
}

// Of the whole model on the tensor axis of `config`.
ComputeTimes times_of(const config::Config& config, const model::Model& whole, const Rates& rates) {
  if (rates.flops == 0) return rates.measured->compute(config);
  const double tokens = static_cast<double>(config.batch.microbatch * config.data.seq_len);
  const double flops = tokens * whole.training_flops_per_token();
  return {.pass = flops / static_cast<double>(config.layout.tp) / rates.flops};
}

// The stages that take most: the ends hold embedding and head, one between holds layers alone.
std::vector<std::int64_t> stages_to_look_at(std::int64_t stages) {
  std::vector<std::int64_t> all{0};
  if (stages > 2) all.push_back(stages / 2);
  if (stages > 1) all.push_back(stages - 1);
  return all;
}

Prediction of_stage(const config::Config& config, std::int64_t stage, const model::Model& whole,
                    const Site& site, const Rates& rates) {
  const parallel::RankPlan plan =
      parallel::rank_plan(config, {{Axis::pp, stage}, {Axis::dp, 0}, {Axis::tp, 0}});
  const StepOfRank step(config, plan);
  const ComputeTimes times = times_of(config, whole, rates);
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
    found.communication += seconds_of(traffic, site, rates);
  }
  return found;
}

// config: resolved. A step of several microbatches, through all stages.
//
// Throws: as parallel::rank_plan.
Prediction predict(const config::Config& config, const Site& site, const Rates& rates) {
  const auto whole = model::make_model(config.model, config.data.seq_len, {},
                                       parallel::computation_of(config.machine));
  Prediction most;
  for (const std::int64_t stage : stages_to_look_at(config.layout.pp)) {
    const Prediction found = of_stage(config, stage, *whole, site, rates);
    const std::int64_t memory = std::max(most.memory, found.memory);
    if (found.seconds() > most.seconds()) most = found;
    most.memory = memory;
  }
  return most;
}

using Outcome = std::variant<Choice, Misfit>;

// All flags but the last one, which is the microbatch.
std::string without_microbatch(const Layout& layout) {
  Layout rest = layout;
  rest.flags.pop_back();
  return fmt::format("{} {}", layout.ranks, rest.text());
}

Misfit too_large(const Layout& layout, const config::Config& config, std::int64_t bytes,
                 const parallel::MemoryRoom& room) {
  const std::int64_t limit = room.bytes / std::max<std::int64_t>(1, room.ranks);
  return {.layout = layout,
          .reason = fmt::format("takes {} per rank, more than the {} that a rank may take",
                                metrics::format_bytes(bytes), metrics::format_bytes(limit)),
          .config = config,
          .memory = bytes,
          .room = room};
}

Outcome look_at(const config::Config& asked, const Layout& layout, const Site& site,
                const Rates& rates, const MemoryLimits& memory) {
  try {
    const config::Config config = with_layout(asked, layout, site);
    const std::int64_t on_node = std::min(layout.ranks, site.ranks_per_node);
    const std::int64_t limit = memory.of_rank(on_node);
    // What does not fit is not run.
    Prediction found = predict(config, site, rates.without_runs());
    if (found.memory > limit) {
      const bool is_shared = memory.is_shared(on_node);
      return too_large(layout, config, found.memory,
                       is_shared ? parallel::MemoryRoom{limit * on_node, on_node}
                                 : parallel::MemoryRoom{limit, 0});
    }
    if (rates.measured != nullptr) found = predict(config, site, rates);
    return Choice{layout, config, found};
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    return Misfit{.layout = layout, .reason = error.what()};
  }
}

// Without the noise of rounding, in which equal predictions of given rates differ.
float speed_of(const Choice& choice) { return static_cast<float>(choice.tokens_per_second()); }

// A way to share the work, with the best of its microbatches, or why none fits.
struct Candidate {
  std::string name;
  std::optional<Choice> choice;
  std::optional<Misfit> misfit;

  // A larger microbatch takes more.
  [[nodiscard]] bool lacks_memory() const { return misfit && misfit->config; }

  // outcome:        of a larger microbatch than those before.
  // prefers_larger: of equally fast microbatches, as long as a run would choose them itself.
  void add(Outcome outcome, bool prefers_larger) {
    if (auto* found = std::get_if<Misfit>(&outcome)) {
      misfit = std::move(*found);
      return;
    }
    Choice& found = std::get<Choice>(outcome);
    const bool is_preferred = choice && prefers_larger && speed_of(found) == speed_of(*choice) &&
                              found.config.batch.microbatch <= config::kMaxAutomaticMicrobatch;
    if (!choice || is_preferred || speed_of(found) > speed_of(*choice)) choice = std::move(found);
  }
};

}  // namespace

Ranking rank_layouts(const config::Config& asked, const Site& site, const Rates& rates,
                     const MemoryLimits& memory,
                     const std::function<void(const std::string&)>& progress) {
  const std::vector<std::int64_t> all_ranks = ranks_to_plan(asked, site.cores);
  config::Config open = asked;
  config::resolve_auto_layout_batch(open.batch, std::ranges::max(all_ranks));
  std::vector<Candidate> candidates;
  for (const std::int64_t ranks : all_ranks) {
    for (const Layout& layout : layouts_of(open, ranks, site)) {
      const std::string name = without_microbatch(layout);
      if (candidates.empty() || candidates.back().name != name) {
        candidates.push_back({.name = name, .choice = {}, .misfit = {}});
      }
      Candidate& candidate = candidates.back();
      if (candidate.lacks_memory()) continue;
      progress(fmt::format("{} ranks: {}", ranks, layout.text()));
      candidate.add(look_at(open, layout, site, rates, memory), rates.flops > 0);
    }
  }
  Ranking ranking;
  for (Candidate& candidate : candidates) {
    if (candidate.choice) {
      ranking.choices.push_back(std::move(*candidate.choice));
    } else {
      ranking.misfits.push_back(std::move(*candidate.misfit));
    }
  }
  std::ranges::stable_sort(ranking.choices, std::greater{}, speed_of);
  return ranking;
}

const Misfit& Ranking::nearest_misfit() const {
  const auto bytes = [](const Misfit& misfit) {
    return misfit.config ? misfit.memory : std::numeric_limits<std::int64_t>::max();
  };
  return *std::ranges::min_element(misfits, {}, bytes);
}

}  // namespace dtrain::planner
