#include "launcher/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "dtrain/base/readable.h"
#include "launcher/median.h"

namespace launcher {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr Seconds kBetweenLooks{1.0};
constexpr int kLooks = 10;
constexpr Seconds kBetweenLines{60.0};
constexpr double kLeastShare = 0.1;  // of a step

}  // namespace

std::string Stragglers::look(const std::vector<Rank>& ranks, Time now) {
  const bool has_begun = accounts_.size() == ranks.size();
  if (has_begun && now - last_look_ < kBetweenLooks) return {};
  const auto goes_on = [&](const Rank& rank) {
    const std::int64_t before =
        has_begun ? accounts_[static_cast<std::size_t>(rank.index)].step : -1;
    return rank.step > before;
  };
  if (ranks.size() < 2 || !std::ranges::all_of(ranks, goes_on)) return {};
  late_.resize(ranks.size());
  if (has_begun) compare(ranks, Seconds(now - last_look_).count());
  last_look_ = now;
  accounts_.clear();
  for (const Rank& rank : ranks) accounts_.push_back({rank.step, rank.waited_us});
  return looks_ >= kLooks ? conclude(now) : std::string();
}

void Stragglers::compare(const std::vector<Rank>& ranks, double elapsed) {
  constexpr double kMicrosecond = 1e-6;
  ++looks_;
  std::vector<double> waits;  // seconds a step
  for (const Rank& rank : ranks) {
    const Account& before = accounts_[waits.size()];
    waits.push_back(static_cast<double>(rank.waited_us - before.waited_us) * kMicrosecond /
                    static_cast<double>(rank.step - before.step));
  }
  const auto least = std::ranges::min_element(waits);
  const auto index = static_cast<std::size_t>(least - waits.begin());
  const double own = *least;
  waits.erase(least);
  const double late = median(waits) - own;
  const double step = elapsed / static_cast<double>(ranks[index].step - accounts_[index].step);
  if (late < kLeastShare * step) return;
  ++late_[index].looks;
  late_[index].seconds += late;
  late_[index].of_seconds += step;
}

std::string Stragglers::conclude(Time now) {
  const auto most = std::ranges::max_element(late_, {}, &Lateness::looks);
  const auto rank = most - late_.begin();
  const Lateness found = *most;
  const int looks = std::exchange(looks_, 0);
  std::ranges::fill(late_, Lateness{});
  if (2 * found.looks < looks || (told_ && now - *told_ < kBetweenLines)) return {};
  told_ = now;
  return fmt::format(
      "rank {} is late: the others waited for it in {} of the last {} looks, {} of {} a step", rank,
      found.looks, looks, dtrain::base::readable_time(found.seconds / found.looks),
      dtrain::base::readable_time(found.of_seconds / found.looks));
}

}  // namespace launcher
