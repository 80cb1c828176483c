#include "dtrain/train/internal/profiler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/job/run_files.h"

namespace dtrain::train {
namespace {

// The first steps of a launch allocate memory and open connections that later ones reuse.
constexpr std::int64_t kWarmupSteps = 2;
// Bounds of one rank's records; as text they stay below the limit of texts between ranks.
constexpr std::size_t kMaxSpans = 1 << 17;
constexpr std::size_t kMaxCalls = 1 << 14;  // per group

std::string host_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Collective.
base::Clock::time_point earliest_of_all(comm::ProcessGroup& world, base::Clock::time_point own) {
  auto earliest = own.time_since_epoch();
  for (const std::string& text :
       comm::exchange_texts(world, std::to_string(own.time_since_epoch().count()))) {
    earliest = std::min(earliest, base::Clock::duration(std::stoll(text)));
  }
  return base::Clock::time_point(earliest);
}

std::int64_t num_lost(const base::Trace& trace, const std::vector<metrics::GroupTrace>& groups) {
  std::int64_t lost = trace.num_lost();
  for (const metrics::GroupTrace& group : groups) lost += group.calls.num_lost;
  return lost;
}

}  // namespace

Profiler::~Profiler() {
  if (trace_) base::Trace::of_thread() = nullptr;
}

bool Profiler::before_step(std::int64_t done, std::int64_t step) {
  const std::int64_t steps = context_.config.report.profile;
  if (steps > 0 && done == 0) warn_if_short(step);
  const bool begins = steps > 0 && done == kWarmupSteps;
  const bool ends = trace_ && done == kWarmupSteps + steps;
  if (begins) begin();
  if (ends) end(step);
  return begins || ends;
}

void Profiler::finish(std::int64_t step) {
  if (trace_) return end(step);
  const std::int64_t wanted = context_.config.report.profile;
  if (wanted == 0 || is_accounted_for_) return;
  context_.reporter.warn(
      step,
      fmt::format(
          "--profile {} traced no step: tracing begins after {} steps, and this launch made fewer",
          wanted, kWarmupSteps));
}

// Warns before the first step, so that nobody waits for a profile in vain.
void Profiler::warn_if_short(std::int64_t step) {
  const std::int64_t wanted = context_.config.report.profile;
  const std::int64_t left = context_.config.train.steps - step;
  if (left >= kWarmupSteps + wanted) return;
  is_accounted_for_ = true;
  context_.reporter.warn(
      step, fmt::format("--profile {} traces only {} steps: tracing begins after {} steps, and "
                        "this launch makes {}; use --steps {} to trace all",
                        wanted, std::max<std::int64_t>(left - kWarmupSteps, 0), kWarmupSteps, left,
                        step + kWarmupSteps + wanted));
}

void Profiler::begin() {
  is_accounted_for_ = true;
  clock_offset_ = comm::clock_offset(context_.world, base::host_of_process());
  context_.groups.for_each([](const std::string&, comm::ProcessGroup& group) {
    group.calls().begin_keeping(kMaxCalls);
  });
  if (!context_.device().is_cpu()) timeline_.emplace(context_.device());
  trace_.emplace(kMaxSpans, timeline_ ? &*timeline_ : nullptr);
  base::Trace::of_thread() = &*trace_;
}

std::vector<metrics::GroupTrace> Profiler::take_calls() const {
  std::vector<metrics::GroupTrace> groups;
  context_.groups.for_each([&](const std::string& label, comm::ProcessGroup& group) {
    groups.push_back({.label = label, .calls = group.calls().end_keeping()});
  });
  return groups;
}

void Profiler::end(std::int64_t step) {
  base::Trace::of_thread() = nullptr;
  metrics::RankTrace rank{.rank = context_.world.rank(),
                          .num_ranks = context_.world.size(),
                          .host = host_name(),
                          .clock_offset = clock_offset_,
                          .spans = *trace_,
                          .groups = take_calls()};
  if (timeline_) rank.device_spans = metrics::device_spans(*trace_, timeline_->times());
  rank.origin = earliest_of_all(context_.world, metrics::start_of(rank));
  const auto lost =
      comm::gather_texts(context_.world, std::to_string(num_lost(*trace_, rank.groups)));
  print_table(metrics::part_times(trace_->spans()), {});
  if (timeline_) print_table(metrics::part_times(rank.device_spans), "on the device");
  const auto parts = comm::gather_texts(context_.world, metrics::trace_events(rank));
  trace_.reset();
  timeline_.reset();
  comm::run_long_on_leader(context_.world, "writing the profile", [&] {
    const auto most = std::ranges::max_element(lost, {}, [](auto& text) { return stoll(text); });
    if (*most != "0") {
      context_.reporter.warn(step,
                             fmt::format("the profile lacks {} spans and calls of rank {}, because "
                                         "its buffer was full: give fewer steps to --profile",
                                         *most, most - lost.begin()));
    }
    write(parts, step);
  });
}

void Profiler::print_table(const metrics::PartTimes& own, std::string_view clock) {
  std::vector<metrics::PartTimes> ranks;
  for (const std::string& text : comm::gather_texts(context_.world, to_text(own))) {
    ranks.push_back(metrics::times_from(text));
  }
  if (context_.world.rank() == 0)
    context_.reporter.note(metrics::time_table(ranks, clock, context_.reporter.room()));
}

void Profiler::write(const std::vector<std::string>& parts, std::int64_t step) const {
  const std::string path = job::trace_file(context_.config.run.dir);
  try {
    metrics::write_trace(path, parts);
  } catch (const base::Error& error) {
    return context_.reporter.warn(
        step, fmt::format("the profile could not be written: {}", error.what()));
  }
  context_.reporter.note(fmt::format("trace: {}, for https://ui.perfetto.dev", path));
}

}  // namespace dtrain::train
