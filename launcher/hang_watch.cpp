#include "launcher/hang_watch.h"

#include <algorithm>

#include "launcher/median.h"

namespace launcher {

void HangWatch::heard(int rank, std::int64_t step, Time now) {
  constexpr std::size_t kSteps = 31;
  constexpr double kMedians = 20.0;
  heard_[static_cast<std::size_t>(rank)] = now;
  watches_any_ = true;
  if (rank != 0 || step <= last_.number) return;
  if (last_.number >= 0) {
    const auto count = static_cast<double>(step - last_.number);
    steps_.push_back(Duration(now - last_.end) / count);
    if (steps_.size() > kSteps) steps_.pop_front();
    const Duration middle = median(std::vector<Duration>(steps_.begin(), steps_.end()));
    of_steps_ = std::max(kLeast, kMedians * middle);
  }
  last_ = {.number = step, .end = now};
}

void HangWatch::excuse(int rank, Time now) {
  auto& heard = heard_[static_cast<std::size_t>(rank)];
  if (heard) heard = now;
}

HangWatch::Time HangWatch::end_of_silence(Time heard) const {
  constexpr Duration kBetweenSigns{1.0};  // of a rank that is busy
  return heard + std::chrono::duration_cast<Time::duration>(limit() + kBetweenSigns);
}

bool HangWatch::is_alive(int rank, Time now) const {
  const auto& heard = heard_[static_cast<std::size_t>(rank)];
  return heard && now < end_of_silence(*heard);
}

std::optional<HangWatch::Silence> HangWatch::longest_silence(const std::vector<Rank>& ranks) const {
  if (limit_ && limit_->count() == 0) return std::nullopt;
  std::optional<Silence> longest;
  for (const Rank& rank : ranks) {
    const auto& heard = heard_[static_cast<std::size_t>(rank.index)];
    if (!heard || !rank.running() || (longest && *heard >= longest->until)) continue;
    longest = Silence{.rank = rank.index, .until = *heard};
  }
  if (longest) longest->until = end_of_silence(longest->until);
  return longest;
}

}  // namespace launcher
