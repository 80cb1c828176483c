#include "launcher/judge/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "launcher/judge/stragglers.h"
#include "launcher/local/rank_stream.h"

namespace launcher {
namespace {

using Records = std::vector<std::optional<RankRecords>>;

constexpr std::size_t kMostCalls = 256;  // of one rank

/// A rank, and its call of a group.
struct Member {
  int rank = 0;
  const GroupCall* call = nullptr;
};

/// The members of each group, in the order of their ranks.
using Groups = std::unordered_map<std::string_view, std::vector<Member>>;

Groups groups_of(const Records& records) {
  Groups groups;
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    const auto& own = records[static_cast<std::size_t>(rank)];
    if (!own) continue;
    for (const GroupCall& call : own->calls) groups[call.group].push_back({rank, &call});
  }
  return groups;
}

bool is_point_to_point(const GroupCall& call) { return call.op == "send" || call.op == "recv"; }

/// A rank waits for the members whose call precedes its own in this order.
std::pair<std::uint64_t, bool> order_of(const GroupCall& call) {
  return {call.number, !call.is_queued};
}

bool is_behind(const GroupCall& other, const GroupCall& call) {
  return order_of(other) < order_of(call);
}

/// For each group, the earliest call among `ranks`.
std::unordered_map<std::string_view, const GroupCall*> last_calls(const Groups& groups,
                                                                  const std::vector<bool>& ranks) {
  std::unordered_map<std::string_view, const GroupCall*> last;
  for (const auto& [name, members] : groups) {
    for (const Member& member : members) {
      if (!ranks[static_cast<std::size_t>(member.rank)]) continue;
      const GroupCall*& found = last[name];
      if (found == nullptr || is_behind(*member.call, *found)) found = member.call;
    }
  }
  return last;
}

/// Returns whether a rank's call names one of `ranks` as the one that it waits for.
bool names_one(const GroupCall& call, int rank, const std::vector<bool>& ranks) {
  return call.awaited >= 0 && call.awaited < std::ssize(ranks) && call.awaited != rank &&
         ranks[static_cast<std::size_t>(call.awaited)];
}

/// For each rank, its first open call that waits for one of `ranks`; nullptr if none does. Takes
/// one pass over all calls: a deadlock of hundreds of ranks has too many pairs of calls to compare.
std::vector<const GroupCall*> waiting_calls(const Records& records, const Groups& groups,
                                            const std::vector<bool>& ranks) {
  const auto last = last_calls(groups, ranks);
  std::vector<const GroupCall*> result(records.size());
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    const auto& own = records[static_cast<std::size_t>(rank)];
    if (!own) continue;
    const auto waits = [&](const GroupCall& call) {
      if (!call.is_open) return false;
      if (names_one(call, rank, ranks)) return true;
      if (is_point_to_point(call)) return false;
      const auto found = last.find(call.group);
      return found != last.end() && is_behind(*found->second, call);
    };
    const auto first = std::ranges::find_if(own->calls, waits);
    if (first != own->calls.end()) result[static_cast<std::size_t>(rank)] = &*first;
  }
  return result;
}

/// The lowest of `ranks` that a rank waits for with its call of waiting_calls.
int lowest_awaited(const Groups& groups, const GroupCall& call, int rank,
                   const std::vector<bool>& ranks) {
  const auto& members = groups.at(call.group);
  const auto first = std::ranges::find_if(members, [&](const Member& member) {
    return ranks[static_cast<std::size_t>(member.rank)] && is_behind(*member.call, call);
  });
  if (is_point_to_point(call) || first == members.end()) return call.awaited;
  return names_one(call, rank, ranks) ? std::min(call.awaited, first->rank) : first->rank;
}

std::string call_text(const GroupCall& call) {
  return fmt::format("call {} ({} of {} bytes in group '{}')", call.number, call.op, call.bytes,
                     call.group);
}

HangVerdict blame(const Records& records, const Groups& groups, const GroupCall& call,
                  int culprit) {
  const auto& members = groups.at(call.group);
  const auto found = std::ranges::find(members, culprit, &Member::rank);
  const GroupCall* own = found == members.end() ? nullptr : found->call;
  const bool is_late = own != nullptr && is_behind(*own, call);
  std::vector<int> waiting;
  double longest = 0;
  for (const auto& [rank, other] : members) {
    const bool comes_first = own != nullptr && !is_point_to_point(call) && is_behind(*own, *other);
    const bool waits = other->is_open && (other->awaited == culprit || comes_first);
    if (rank == culprit || other->number != call.number || !waits) continue;
    waiting.push_back(rank);
    longest = std::max(longest, other->seconds);
  }
  const auto& answer = records[static_cast<std::size_t>(culprit)];
  return {
      .culprit = culprit,
      .text = fmt::format("{} {}, for which {} waited {}{}",
                          own != nullptr && !is_late ? "held up" : "did not join", call_text(call),
                          dtrain::base::ranks_text(waiting), dtrain::base::readable_time(longest),
                          answer ? "; it was " + answer->where : std::string())};
}

void take_line(RankRecords& records, std::string_view line) {
  const std::string_view word = take_word(line);
  if (word == "records-end" || word == "records-last") {
    records.is_whole = true;
  } else if (word == "where") {
    records.where = dtrain::base::printable(line, 200);
  } else if (word == "call" && records.calls.size() < kMostCalls) {
    GroupCall call;
    const auto number = dtrain::base::number_in<std::uint64_t>(take_word(line));
    call.op = dtrain::base::printable(take_word(line), 40);
    const auto bytes = dtrain::base::number_in<std::int64_t>(take_word(line));
    const std::string_view state = take_word(line);
    const auto seconds = dtrain::base::number_in<double>(take_word(line));
    const auto awaited = dtrain::base::number_in<int>(take_word(line));
    if (!number || !bytes || !seconds || !awaited || line.empty()) return;
    call.number = *number;
    call.bytes = *bytes;
    call.is_queued = state == "queued";
    call.is_open = call.is_queued || state == "open";
    call.seconds = *seconds;
    call.awaited = *awaited;
    call.group = dtrain::base::printable(line, 100);
    records.calls.push_back(std::move(call));
  }
}

/// For a rank that does not respond: the call in which another rank has waited longest.
std::string no_response_text(const Records& records) {
  const GroupCall* longest = nullptr;
  int waiting = 0;
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    if (!records[static_cast<std::size_t>(rank)]) continue;
    for (const GroupCall& call : records[static_cast<std::size_t>(rank)]->calls) {
      if (!call.is_open || (longest != nullptr && call.seconds <= longest->seconds)) continue;
      longest = &call;
      waiting = rank;
    }
  }
  const std::string text =
      "did not respond when the job hung and dtrun asked all ranks for their positions";
  if (longest == nullptr) return text;
  return text + fmt::format("; rank {} waited {} in {}", waiting,
                            dtrain::base::readable_time(longest->seconds), call_text(*longest));
}

}  // namespace

RankRecords parse_records(std::string_view text) {
  RankRecords records;
  for (const std::string_view line : dtrain::base::split(text, '\n')) take_line(records, line);
  return records;
}

std::optional<HangVerdict> hang_verdict(const Records& records) {
  const bool any_answered =
      std::ranges::any_of(records, [](const auto& own) { return own && own->is_whole; });
  if (!any_answered) return std::nullopt;
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    const auto& own = records[static_cast<std::size_t>(rank)];
    if (own && !own->is_whole) {
      return HangVerdict{.culprit = rank, .text = no_response_text(records)};
    }
  }
  const Groups groups = groups_of(records);
  const std::vector<bool> all(records.size(), true);
  std::vector<bool> waits_for_nobody;
  for (const GroupCall* call : waiting_calls(records, groups, all))
    waits_for_nobody.push_back(call == nullptr);
  // The verdict on the first rank that waits for one of `ranks`.
  const auto verdict_on = [&](const std::vector<bool>& ranks) -> std::optional<HangVerdict> {
    const auto calls = waiting_calls(records, groups, ranks);
    const auto first = std::ranges::find_if(calls, [](const GroupCall* call) { return call; });
    if (first == calls.end()) return std::nullopt;
    const int rank = static_cast<int>(first - calls.begin());
    return blame(records, groups, **first, lowest_awaited(groups, **first, rank, ranks));
  };
  if (auto verdict = verdict_on(waits_for_nobody)) return verdict;
  auto circle = verdict_on(all);
  if (circle) circle->text += "; deadlock: the ranks wait for each other";
  return circle;
}

void HangWatch::heartbeat(int rank, std::int64_t step, Time now) {
  constexpr std::size_t kSteps = 31;
  constexpr double kMedians = 20.0;
  last_heartbeats_[static_cast<std::size_t>(rank)] = now;
  watches_any_ = true;
  if (rank != 0 || step <= last_.number) return;
  if (last_.number >= 0) {
    const auto count = static_cast<double>(step - last_.number);
    steps_.push_back(Duration(now - last_.end) / count);
    if (steps_.size() > kSteps) steps_.pop_front();
    const Duration middle = median(std::vector<Duration>(steps_.begin(), steps_.end()));
    step_based_limit_ = std::max(kLeast, kMedians * middle);
  }
  last_ = {.number = step, .end = now};
}

void HangWatch::reset_timer(int rank, Time now) {
  auto& heard = last_heartbeats_[static_cast<std::size_t>(rank)];
  if (heard) heard = now;
}

HangWatch::Time HangWatch::end_of_silence(Time heard) const {
  constexpr Duration kBetweenSigns{1.0};  // of a rank that is busy
  return heard + std::chrono::duration_cast<Time::duration>(limit() + kBetweenSigns);
}

bool HangWatch::is_alive(int rank, Time now) const {
  const auto& heard = last_heartbeats_[static_cast<std::size_t>(rank)];
  return heard && now < end_of_silence(*heard);
}

std::optional<HangWatch::Silence> HangWatch::longest_silence(const std::vector<Rank>& ranks) const {
  if (limit_ && limit_->count() == 0) return std::nullopt;
  std::optional<Silence> longest;
  for (const Rank& rank : ranks) {
    const auto& heard = last_heartbeats_[static_cast<std::size_t>(rank.index)];
    if (!heard || !rank.running() || (longest && *heard >= longest->until)) continue;
    longest = Silence{.rank = rank.index, .until = *heard};
  }
  if (longest) longest->until = end_of_silence(longest->until);
  return longest;
}

void HangWatch::reset_silent_timers(const std::vector<Rank>& ranks, Time now) {
  for (const Rank& rank : ranks) {
    if (!is_alive(rank.index, now)) reset_timer(rank.index, now);
  }
}

// Heartbeats can only postpone the hang timeout, so the last result stays valid until then.
std::optional<int> HangWatch::find_silent(const std::vector<Rank>& ranks, Time now) {
  constexpr std::chrono::milliseconds kBetweenChecks(100);
  if (silence_ && now < silence_->until && now - checked_ < kBetweenChecks) return std::nullopt;
  silence_ = longest_silence(ranks);
  checked_ = now;
  if (!silence_ || now < silence_->until) return std::nullopt;
  return silence_->rank;
}

std::optional<HangWatch::Time> HangWatch::next_check() const {
  return silence_ ? std::optional(silence_->until) : std::nullopt;
}

bool HangWatch::all_have_responded(const std::vector<Rank>& ranks) {
  return std::ranges::none_of(
      ranks, [](const Rank& rank) { return rank.running() && !rank.records.is_complete; });
}

std::optional<int> HangWatch::find_culprit(std::vector<Rank>& ranks, Time now) {
  const bool is_hang = !ranks[static_cast<std::size_t>(suspect_)].end;
  const auto is_alive_without_response = [&](const Rank& rank) {
    return rank.running() && !rank.records.is_complete && is_alive(rank.index, now);
  };
  // Without the response of a slow rank the others are inconclusive.
  if (is_hang && std::ranges::any_of(ranks, is_alive_without_response)) {
    reset_silent_timers(ranks, now);
    return std::nullopt;
  }
  std::vector<std::optional<RankRecords>> records;
  for (const Rank& rank : ranks) {
    const bool counts = rank.running() || rank.records.is_complete;
    records.push_back(counts ? std::optional(parse_records(rank.records.text)) : std::nullopt);
  }
  const auto found = hang_verdict(records);
  Rank& culprit = ranks[static_cast<std::size_t>(found ? found->culprit : suspect_)];
  if (!found && culprit.end) return std::nullopt;
  // The others wait for a rank that makes progress, such as one that reads from a slow disk.
  if (is_hang && is_alive(culprit.index, now)) {
    reset_silent_timers(ranks, now);
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
