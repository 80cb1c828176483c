#include "dtrain/planner/internal/machine_rates.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/host/available_resources.h"
#include "dtrain/comm/local/local_world.h"
#include "dtrain/data/batch.h"
#include "dtrain/job/job.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::planner {
namespace {

using mesh::Axis;

// Long enough for a stable median, short compared with a run.
constexpr double kSeconds = 1.0;
constexpr std::size_t kMostSteps = 5;
// Seconds from which a pass runs at full speed and is not repeated.
constexpr double kLongPass = 0.5;
// Memory of LibTorch and the process besides tensors.
constexpr std::int64_t kProcessBytes = 200 << 20;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Pseudo-random tokens; compute times do not depend on them.
data::Batch synthetic_batch(const config::Config& config) {
  const auto tokens = static_cast<std::size_t>(config.batch.microbatch * config.data.seq_len);
  data::Batch batch{.inputs = std::vector<std::int64_t>(tokens),
                    .targets = std::vector<std::int64_t>(tokens),
                    .num_sequences = config.batch.microbatch,
                    .length = config.data.seq_len};
  std::int64_t token = 1;
  for (std::size_t i = 0; i < tokens; ++i) {
    token = (token * 48271) % 2147483647;
    batch.inputs[i] = token % config.model.vocab;
    batch.targets[i] = (token / 7) % config.model.vocab;
  }
  return batch;
}

// Reduces the job to one rank, or to its tensor axis.
config::Config single_rank(config::Config config) {
  using Recompute = config::RecomputeSetting;
  config.layout.pp = 1;
  config.layout.dp = 1;
  config.layout.shard_size = 1;
  config.layout.strategy = config.layout.tp > 1 ? config::Strategy::tp : config::Strategy::single;
  config.batch.grad_accum = 1;
  config.batch.global = config.batch.microbatch;
  config.layout.pp_split = {};
  config.layout.schedule_pp = {};
  config.machine.memory_limit = {};
  config.checkpoint.every = {};
  // Recomputed gates are part of a level's kernels, not actions of the engine.
  if (config.machine.recompute.kind != Recompute::Kind::gates) config.machine.recompute = {};
  return config;
}

std::unique_ptr<model::Model> whole_model(const config::Config& config) {
  return model::make_model(config.model, config.data.seq_len, {},
                           parallel::compute_options_of(config.machine));
}

std::int64_t memory_of(const config::Config& config) {
  return parallel::rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}}).memory.peak();
}

// Keeps at most `layers` layers. Names of parameters may be those of a removed layer.
void keep_layers(config::Config& job, std::int64_t layers) {
  if (layers >= job.model.layers) return;
  job.model.layers = layers;
  job.train.freeze.clear();
  job.train.no_decay.clear();
}

// Measures the times of `config` itself, unscaled.
ComputeTimes step_times(const config::Config& config) {
  at::set_num_threads(static_cast<int>(config.machine.threads));
  job::Job job(config, comm::make_silent_world(config.layout.tp));
  parallel::StepEngine& engine = job.engine();
  const std::vector<data::Batch> batch{synthetic_batch(config)};
  std::vector<double> passes;
  std::vector<double> updates;
  const auto begin = base::Clock::now();
  do {
    const auto start = base::Clock::now();
    engine.forward_backward(batch);
    passes.push_back(base::seconds_since(start));
    engine.clip_grad_norm(config.train.grad_clip);
    engine.optimizer_step(0);  // a product with a rate takes as long whatever the rate is
    (void)engine.finish_step();
    updates.push_back(base::seconds_since(start) - passes.back());
    if (passes.front() > kLongPass) return {passes.front(), updates.front()};
  } while (passes.size() < 2 ||
           (passes.size() < kMostSteps && base::seconds_since(begin) < kSeconds));
  // The first step touches new memory.
  passes.erase(passes.begin());
  updates.erase(updates.begin());
  return {median(passes), median(updates)};
}

ComputeTimes measure(const config::Config& requested) {
  const std::int64_t memory = MemoryLimits{.machine = available_memory()}.of_rank(1);
  const auto measured = [&](std::int64_t layers) {
    const TimedJob timed = timed_job(requested, memory, layers);
    const ComputeTimes times = step_times(timed.config);
    return ComputeTimes{timed.pass_factor * times.pass, timed.update_factor * times.update};
  };
  // Estimates the whole model's time from one level.
  const ComputeTimes from_one_level = measured(1);
  const double of_a_level = from_one_level.pass / static_cast<double>(requested.model.layers);
  const auto most = static_cast<double>(requested.model.layers);
  const auto layers = static_cast<std::int64_t>(std::clamp(kLongPass / of_a_level, 1.0, most));
  return layers == 1 ? from_one_level : measured(layers);
}

double seconds_of_all_reduce(comm::ProcessGroup& group, const at::Tensor& values, int repetitions) {
  group.barrier();
  const auto begin = base::Clock::now();
  for (int i = 0; i < repetitions; ++i) group.all_reduce(values).wait_host();
  return base::seconds_since(begin) / repetitions;
}

LinkRate link_of_threads() {
  LinkRate rate;
  comm::run_local_ranks(2, {}, [&](const std::shared_ptr<comm::World>& world) {
    const LinkRate found = measure_link(*world->split(comm::ranks_below(2), "link"));
    if (world->rank() == 0) rate = found;
  });
  return rate;
}

}  // namespace

double ring_share(std::int64_t ranks) {
  return 2.0 * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

bool MemoryLimits::is_shared(std::int64_t ranks) const {
  return machine != kNone && machine / ranks - kProcessBytes <= rank;
}

std::int64_t MemoryLimits::of_rank(std::int64_t ranks) const {
  return is_shared(ranks) ? std::max<std::int64_t>(0, machine / ranks - kProcessBytes) : rank;
}

std::int64_t available_memory() {
  std::int64_t available = MemoryLimits::kNone;
  for (const base::MemoryBound& bound : base::memory_bounds()) {
    available = std::min(available, bound.bytes);
  }
  return available;
}

TimedJob timed_job(const config::Config& config, std::int64_t memory, std::int64_t most_layers) {
  TimedJob timed{single_rank(config)};
  config::Config& job = timed.config;
  keep_layers(job, most_layers);
  // A job that fits less than well would trigger a warning (job/machine_memory.h).
  while (base::fit_of(memory_of(job), memory) != base::Fit::well) {
    if (job.model.layers == 1) {
      base::fail(base::ErrorKind::usage,
                 "cannot measure its time here: a single layer needs {}, and {} are available",
                 metrics::format_bytes(memory_of(job)), metrics::format_bytes(memory));
    }
    keep_layers(job, job.model.layers / 2);
  }
  if (job.model.layers == config.model.layers) return timed;
  const auto whole = whole_model(config);
  const auto part = whole_model(job);
  timed.pass_factor = whole->training_flops_per_token() / part->training_flops_per_token();
  timed.update_factor =
      static_cast<double>(whole->num_elements()) / static_cast<double>(part->num_elements());
  return timed;
}

LinkRate measure_link(comm::ProcessGroup& group) {
  constexpr std::int64_t kLarge = 8 << 20;  // bytes
  const at::Tensor small = at::zeros({256});
  const at::Tensor large = at::zeros({kLarge / 4});
  (void)seconds_of_all_reduce(group, large, 2);
  const double latency = seconds_of_all_reduce(group, small, 200);
  const double seconds = seconds_of_all_reduce(group, large, 10);
  const double sent = static_cast<double>(kLarge) * ring_share(group.size());
  return {latency, sent / std::max(seconds - latency, 1e-9)};
}

const ComputeTimes& MachineRates::compute(const config::Config& config) {
  const std::int64_t microbatch = config.batch.microbatch;
  const Key key{microbatch, config.machine.threads, config.layout.tp};
  if (const auto found = compute_.find(key); found != compute_.end()) return found->second;
  if (microbatch % 2 == 0) {
    config::Config half = config;
    half.batch.microbatch = microbatch / 2;
    const ComputeTimes& times = compute(half);
    if (times.pass > kLongPass) {
      return compute_.emplace(key, ComputeTimes{2 * times.pass, times.update}).first->second;
    }
  }
  return compute_.emplace(key, measure(config)).first->second;
}

const LinkRate& MachineRates::link() {
  if (link_.bytes_per_second == 0) link_ = link_of_threads();
  return link_;
}

}  // namespace dtrain::planner
