#include "launcher/judge/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "dtrain/base/text/text.h"

namespace launcher {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kBetweenSamples{1.0};
constexpr int kLeastSamples = 10;
constexpr Seconds kLeastTime{60.0};
constexpr double kLeastShare = 0.1;  // of a step

}  // namespace

void Stragglers::begin_attempt() {
  last_progress_.clear();
  late_.clear();
  samples_ = 0;
}

std::string Stragglers::sample(const std::vector<Rank>& ranks, Time now) {
  const bool has_begun = last_progress_.size() == ranks.size();
  if (has_reported_ || (has_begun && now - last_sample_ < kBetweenSamples)) return {};
  const auto goes_on = [&](const Rank& rank) {
    const std::int64_t before =
        has_begun ? last_progress_[static_cast<std::size_t>(rank.index)].step : -1;
    return rank.step > before;
  };
  if (ranks.size() < 2 || !std::ranges::all_of(ranks, goes_on)) return {};
  late_.resize(ranks.size());
  if (has_begun) {
    compare(ranks, Seconds(now - last_sample_).count());
  } else {
    begin_ = now;
  }
  last_sample_ = now;
  last_progress_.clear();
  for (const Rank& rank : ranks) last_progress_.push_back({rank.step, rank.waited_us});
  const bool is_enough = samples_ >= kLeastSamples && now - begin_ >= kLeastTime;
  return is_enough ? conclude(now) : std::string();
}

void Stragglers::compare(const std::vector<Rank>& ranks, double elapsed) {
  constexpr double kMicrosecond = 1e-6;
  ++samples_;
  std::vector<double> waits;  // seconds per step
  for (const Rank& rank : ranks) {
    const Progress& before = last_progress_[waits.size()];
    waits.push_back(static_cast<double>(rank.waited_us - before.waited_us) * kMicrosecond /
                    static_cast<double>(rank.step - before.step));
  }
  const auto least = std::ranges::min_element(waits);
  const auto index = static_cast<std::size_t>(least - waits.begin());
  const double own = *least;
  waits.erase(least);
  const double late = median(waits) - own;
  const double step = elapsed / static_cast<double>(ranks[index].step - last_progress_[index].step);
  if (late < kLeastShare * step) return;
  ++late_[index].samples;
  late_[index].seconds += late;
  late_[index].of_seconds += step;
}

std::string Stragglers::conclude(Time now) {
  const auto most = std::ranges::max_element(late_, {}, &Lateness::samples);
  const auto rank = most - late_.begin();
  const Lateness found = *most;
  has_reported_ = 2 * found.samples >= samples_;
  begin_ = now;
  samples_ = 0;
  std::ranges::fill(late_, Lateness{});
  if (!has_reported_) return {};
  return fmt::format("rank {} is a straggler: the other ranks wait {} for it in each step of {}",
                     rank, dtrain::base::readable_time(found.seconds / found.samples),
                     dtrain::base::readable_time(found.of_seconds / found.samples));
}

}  // namespace launcher
