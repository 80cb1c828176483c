#include "launcher/hang_verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "dtrain/base/number.h"
#include "dtrain/base/printable.h"
#include "dtrain/base/readable.h"
#include "launcher/take_word.h"

namespace launcher {
namespace {

using Records = std::vector<std::optional<RankRecords>>;

constexpr std::size_t kMostCalls = 256;  // of one rank

/// A rank's open call, and a rank that it needs for it.
struct Wait {
  int waiting = 0;
  int awaited = 0;
  const GroupCall* call = nullptr;
};

bool is_of_two(const GroupCall& call) { return call.op == "send" || call.op == "recv"; }

const GroupCall* call_in(const RankRecords& records, const std::string& group) {
  const auto found = std::ranges::find(records.calls, group, &GroupCall::group);
  return found == records.calls.end() ? nullptr : &*found;
}

bool is_behind(const GroupCall& other, const GroupCall& call) {
  return other.number < call.number ||
         (other.number == call.number && other.is_queued && !call.is_queued);
}

void add_waits(const Records& records, int waiting, const GroupCall& call,
               std::vector<Wait>& waits) {
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    if (rank == waiting) continue;
    const auto& other = records[static_cast<std::size_t>(rank)];
    const GroupCall* same = other ? call_in(*other, call.group) : nullptr;
    const bool is_missing = same != nullptr && !is_of_two(call) && is_behind(*same, call);
    if (is_missing || rank == call.awaited) waits.push_back({waiting, rank, &call});
  }
}

std::vector<Wait> waits_of(const Records& records) {
  std::vector<Wait> waits;
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    const auto& own = records[static_cast<std::size_t>(rank)];
    if (!own) continue;
    for (const GroupCall& call : own->calls) {
      if (call.is_open) add_waits(records, rank, call, waits);
    }
  }
  return waits;
}

std::string call_text(const GroupCall& call) {
  return fmt::format("call {} ({} of {} bytes in group '{}')", call.number, call.op, call.bytes,
                     call.group);
}

std::string ranks_text(const std::set<int>& ranks) {
  constexpr std::size_t kShown = 8;
  if (ranks.size() > kShown) return fmt::format("{} ranks", ranks.size());
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

HangVerdict blame(const Records& records, const std::vector<Wait>& waits, const Wait& first) {
  std::set<int> waiting;
  double longest = 0;
  for (const Wait& wait : waits) {
    const bool is_same = wait.awaited == first.awaited && wait.call->group == first.call->group &&
                         wait.call->number == first.call->number;
    if (!is_same) continue;
    waiting.insert(wait.waiting);
    longest = std::max(longest, wait.call->seconds);
  }
  const GroupCall& call = *first.call;
  const auto& culprit = records[static_cast<std::size_t>(first.awaited)];
  const GroupCall* own = culprit ? call_in(*culprit, call.group) : nullptr;
  const bool has_come = own != nullptr && !is_behind(*own, call);
  return {.culprit = first.awaited,
          .text = fmt::format("{} {}, for which {} waited {}{}",
                              has_come ? "held up" : "did not join", call_text(call),
                              ranks_text(waiting), dtrain::base::readable_time(longest),
                              culprit ? "; it was " + culprit->where : std::string())};
}

void take_line(RankRecords& records, std::string_view line) {
  const std::string_view word = take_word(line);
  if (word == "records-end") {
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

/// Of a rank that answers nothing: for what another has waited longest.
std::string mute_text(const Records& records) {
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
      "did not answer when the job hung and dtrun asked all ranks where they are";
  if (longest == nullptr) return text;
  return text + fmt::format("; rank {} waited {} in {}", waiting,
                            dtrain::base::readable_time(longest->seconds), call_text(*longest));
}

}  // namespace

RankRecords parse_records(std::string_view text) {
  RankRecords records;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    take_line(records, text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return records;
}

std::optional<HangVerdict> hang_verdict(const Records& records) {
  const bool any_answered =
      std::ranges::any_of(records, [](const auto& own) { return own && own->is_whole; });
  if (!any_answered) return std::nullopt;
  for (int rank = 0; rank < std::ssize(records); ++rank) {
    const auto& own = records[static_cast<std::size_t>(rank)];
    if (own && !own->is_whole) {
      return HangVerdict{.culprit = rank, .text = mute_text(records)};
    }
  }
  const std::vector<Wait> waits = waits_of(records);
  std::vector<bool> is_waiting(records.size());
  for (const Wait& wait : waits) is_waiting[static_cast<std::size_t>(wait.waiting)] = true;
  const auto is_free = [&](const Wait& wait) {
    return !is_waiting[static_cast<std::size_t>(wait.awaited)];
  };
  const auto first = std::ranges::find_if(waits, is_free);
  if (first != waits.end()) return blame(records, waits, *first);
  if (waits.empty()) return std::nullopt;
  HangVerdict circle = blame(records, waits, waits.front());
  circle.text += "; the ranks wait for each other in a circle";
  return circle;
}

}  // namespace launcher
