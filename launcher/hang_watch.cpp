#include "launcher/hang_watch.h"

#include <algorithm>

namespace launcher {

void HangWatch::heard(int rank, std::int64_t step, Time now) {
  constexpr std::size_t kSteps = 31;
  heard_[static_cast<std::size_t>(rank)] = now;
  if (rank != 0 || step <= last_.number) return;
  if (last_.number >= 0) {
    const auto count = static_cast<double>(step - last_.number);
    steps_.push_back(Duration(now - last_.end) / count);
    if (steps_.size() > kSteps) steps_.pop_front();
  }
  last_ = {.number = step, .end = now};
}

void HangWatch::excuse(int rank, Time now) {
  auto& heard = heard_[static_cast<std::size_t>(rank)];
  if (heard) heard = now;
}

HangWatch::Duration HangWatch::limit() const {
  constexpr Duration kLeast{60.0};
  constexpr double kSteps = 20.0;
  if (limit_) return *limit_;
  if (steps_.empty()) return kLeast;
  std::deque<Duration> sorted = steps_;
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kLeast, kSteps * *middle);
}

std::optional<HangWatch::Silence> HangWatch::longest_silence(const std::vector<Rank>& ranks) const {
  if (limit_ && limit_->count() == 0) return std::nullopt;
  std::optional<Silence> longest;
  for (const Rank& rank : ranks) {
    const auto& heard = heard_[static_cast<std::size_t>(rank.index)];
    if (!heard || !rank.running() || (longest && *heard >= longest->until)) continue;
    longest = Silence{.rank = rank.index, .until = *heard};
  }
  constexpr Duration kBetweenSigns{1.0};  // of a rank that is busy
  if (longest) {
    longest->until += std::chrono::duration_cast<Time::duration>(limit() + kBetweenSigns);
  }
  return longest;
}

}  // namespace launcher
