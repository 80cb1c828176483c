#include "launcher/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "dtrain/base/text.h"
#include "launcher/hang_verdict.h"
#include "launcher/stragglers.h"

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

void HangWatch::excuse_silent(const std::vector<Rank>& ranks, Time now) {
  for (const Rank& rank : ranks) {
    if (!is_alive(rank.index, now)) excuse(rank.index, now);
  }
}

// Signs of life only put off the end of a silence, so what was found holds for a while.
std::optional<int> HangWatch::find_silent(const std::vector<Rank>& ranks, Time now) {
  constexpr std::chrono::milliseconds kBetweenLooks(100);
  if (silence_ && now < silence_->until && now - looked_ < kBetweenLooks) return std::nullopt;
  silence_ = longest_silence(ranks);
  looked_ = now;
  if (!silence_ || now < silence_->until) return std::nullopt;
  return silence_->rank;
}

std::optional<HangWatch::Time> HangWatch::next_look() const {
  return silence_ ? std::optional(silence_->until) : std::nullopt;
}

bool HangWatch::all_have_answered(const std::vector<Rank>& ranks) {
  return std::ranges::none_of(ranks,
                              [](const Rank& rank) { return rank.running() && !rank.has_records; });
}

std::optional<int> HangWatch::judge(std::vector<Rank>& ranks, Time now) {
  const bool is_hang = !ranks[static_cast<std::size_t>(suspect_)].end;
  const auto is_alive_and_mute = [&](const Rank& rank) {
    return rank.running() && !rank.has_records && is_alive(rank.index, now);
  };
  // Without the answer of a slow rank the others' answers prove nothing.
  if (is_hang && std::ranges::any_of(ranks, is_alive_and_mute)) {
    excuse_silent(ranks, now);
    return std::nullopt;
  }
  std::vector<std::optional<RankRecords>> records;
  for (const Rank& rank : ranks) {
    const bool counts = rank.running() || rank.has_records;
    records.push_back(counts ? std::optional(parse_records(rank.records)) : std::nullopt);
  }
  const auto found = hang_verdict(records);
  Rank& culprit = ranks[static_cast<std::size_t>(found ? found->culprit : suspect_)];
  if (!found && culprit.end) return std::nullopt;
  // The others wait for a rank that makes progress, such as one that reads from a slow disk.
  if (is_hang && is_alive(culprit.index, now)) {
    excuse_silent(ranks, now);
    return std::nullopt;
  }
  if (found) {
    culprit.hang = found->text;
  } else {
    const std::string& where = records[static_cast<std::size_t>(culprit.index)]->where;
    culprit.hang = fmt::format("made no progress for {} (--hang-timeout){}",
                               dtrain::base::readable_time(limit().count()),
                               where.empty() ? "" : "; it was " + where);
  }
  return culprit.index;
}

}  // namespace launcher
