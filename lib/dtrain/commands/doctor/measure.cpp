#include "dtrain/commands/doctor/measure.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>

#include "dtrain/base/clock.h"
#include "dtrain/metrics/format.h"

namespace dtrain::commands::doctor {
namespace {

constexpr int kQuestions = 8;
constexpr double kMostApart =
    1.0;  // seconds; logs, time limits and authentication suffer from more

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Offset {
  double seconds = 0;  // of a rank's clock, ahead of rank 0's
  double doubt = INFINITY;
};

// Rank 0 asks; the answer was written between question and arrival.
Offset ask(comm::ProcessGroup& group, std::int64_t peer) {
  const auto word = at::empty({1}, at::kDouble);
  Offset best;
  for (int question = 0; question < kQuestions; ++question) {
    const double asked = now();
    const auto begin = base::Clock::now();
    group.send(word, peer).wait_host();
    group.recv(word, peer).wait_host();
    const double half = base::seconds_since(begin) / 2;
    if (half < best.doubt) best = {word.const_data_ptr<double>()[0] - (asked + half), half};
  }
  return best;
}

void answer(comm::ProcessGroup& group) {
  const auto word = at::empty({1}, at::kDouble);
  for (int question = 0; question < kQuestions; ++question) {
    group.recv(word, 0).wait_host();
    word.mutable_data_ptr<double>()[0] = now();
    group.send(word, 0).wait_host();
  }
}

std::string readable(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

struct Size {
  std::int64_t bytes;
  int repetitions;
};
constexpr Size kSizes[] = {{1 << 10, 200}, {1 << 18, 50}, {1 << 20, 20}, {1 << 24, 5}};

// Seconds of one all-reduce on the slowest rank.
double seconds_of(comm::World& world, comm::ProcessGroup& group, const Size& size) {
  const at::Tensor values = world.allocate(size.bytes).view(at::kFloat);  // (bytes / 4)
  group.all_reduce(values).wait_host();
  world.control().barrier();
  const auto begin = base::Clock::now();
  for (int i = 0; i < size.repetitions; ++i) group.all_reduce(values).wait_host();
  const auto seconds = at::full({1}, base::seconds_since(begin) / size.repetitions, at::kDouble);
  world.control().all_reduce(seconds, comm::ReduceOp::max).wait_host();
  return seconds.item<double>();
}

}  // namespace

void measure_clocks(comm::World& world, Findings& findings) {
  if (world.size() == 1) return findings.fact("clocks", "one rank: nothing to compare");
  comm::ProcessGroup& group = world.control();
  const auto worst = at::full({3}, 0.0, at::kDouble);  // offset, doubt, rank
  auto* found = worst.mutable_data_ptr<double>();
  for (std::int64_t peer = 1; peer < world.size(); ++peer) {
    if (world.rank() == peer) answer(group);
    if (world.rank() != 0) continue;
    const Offset offset = ask(group, peer);
    if (peer > 1 && std::abs(offset.seconds) <= std::abs(found[0])) continue;
    found[0] = offset.seconds;
    found[1] = offset.doubt;
    found[2] = static_cast<double>(peer);
  }
  group.broadcast(worst, 0).wait_host();
  const std::string text = fmt::format("rank {}'s clock is {} {} rank 0's, +/- {}", found[2],
                                       readable(std::abs(found[0])),
                                       found[0] < 0 ? "behind" : "ahead of", readable(found[1]));
  findings.fact("clocks", (world.size() > 2 ? "the farthest: " : "") + text);
  if (std::abs(found[0]) - found[1] < kMostApart) return;
  findings.problem(base::ErrorKind::usage, text + ": set the machines' clocks, as by chrony");
}

void measure_all_reduce(comm::World& world, Findings& findings) {
  if (world.size() == 1) return findings.fact("all-reduce", "one rank: nothing to measure");
  const auto group = world.split(comm::ranks_below(world.size()), "doctor");
  const double ranks = static_cast<double>(world.size());
  for (const Size& size : kSizes) {
    const double seconds = seconds_of(world, *group, size);
    // Bytes that each rank must send in any case, as benchmarks of all-reduces count them.
    const double sent = 2 * (ranks - 1) / ranks * static_cast<double>(size.bytes);
    findings.fact("all-reduce",
                  fmt::format("{:>9}: {:>9}, {:.2f} GB/s", metrics::format_bytes(size.bytes),
                              readable(seconds), sent / seconds / 1e9));
  }
}

}  // namespace dtrain::commands::doctor
