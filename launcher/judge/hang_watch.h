// Detects hangs and stopped ranks, and finds the rank that a hung job waits for.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/clock.h"
#include "launcher/local/rank.h"

namespace launcher {

/// A rank's oldest open collective of one group, or the last one that it completed.
struct GroupCall {
  std::uint64_t number = 0;  // within the group
  std::string op;
  std::int64_t bytes = 0;
  bool is_open = false;
  bool is_queued = false;  // open, but not started
  double seconds = 0;      // since the call
  int awaited = -1;        // the rank that it waits for now; -1: none, or unknown
  std::string group;       // the same name on all ranks
};

/// The response of a rank that was asked for its position and its open collectives.
struct RankRecords {
  std::string where;  // "in the backward pass, block 3, of step 12"
  std::vector<GroupCall> calls;
  bool is_whole = false;  // the response is complete
};

/// Parses a rank's response (docs/guide/dtrun.md). Skips lines of an unknown form.
[[nodiscard]] RankRecords parse_records(std::string_view text);

/// The rank that a hung job waits for.
struct HangVerdict {
  int culprit = 0;
  std::string text;  // which collective it holds up, and its position
};

/// Finds the culprit of a hang: a rank that did not respond although others did, or otherwise a
/// rank that others wait for and that waits for no rank. A rank waits for the members of a group
/// that have not made its open call, and for the rank that the call names.
///
/// records: by rank; nullopt for a rank that was not asked, for example because it has ended.
/// Returns: nullopt if no rank waits for another.
[[nodiscard]] std::optional<HangVerdict> hang_verdict(
    const std::vector<std::optional<RankRecords>>& records);

/// Detects silent ranks by missing heartbeats, and finds the culprit in the responses of all ranks.
/// A rank is watched from its first heartbeat on, so a program without heartbeats is never watched.
/// Times are an ActiveClock's.
///
/// Threads: one.
class HangWatch {
 public:
  using Time = dtrain::base::Clock::time_point;
  using Duration = std::chrono::duration<double>;

  /// The rank that has been silent for longest, and when it exceeds the limit.
  struct Silence {
    int rank = 0;
    Time until;
  };

  /// limit: longest silence; 0: no limit; nullopt: the larger of 10 min and 20 median step times.
  ///        One second is added, because a busy rank sends one heartbeat per second.
  HangWatch(std::optional<Duration> limit, int num_ranks)
      : limit_(limit), last_heartbeats_(static_cast<std::size_t>(num_ranks)) {}

  /// step: the last one that the rank has completed; -1: none yet.
  void heartbeat(int rank, std::int64_t step, Time now);

  /// Restarts the rank's timer, because something else has held up the rank until now.
  void reset_timer(int rank, Time now);

  [[nodiscard]] Duration limit() const { return limit_.value_or(step_based_limit_); }
  /// True if a rank has sent a heartbeat.
  [[nodiscard]] bool watches_any() const { return watches_any_; }
  /// True if the rank has sent a heartbeat within the limit.
  [[nodiscard]] bool is_alive(int rank, Time now) const;
  /// Returns the longest silence among running ranks; nullopt if no rank is watched.
  [[nodiscard]] std::optional<Silence> longest_silence(const std::vector<Rank>& ranks) const;

  /// Returns a rank that exceeds the limit. Checks all ranks, so call it at most ten times a
  /// second.
  [[nodiscard]] std::optional<int> find_silent(const std::vector<Rank>& ranks, Time now);
  /// The time at which the rank with the longest silence exceeds the limit, as of find_silent.
  [[nodiscard]] std::optional<Time> next_check() const;

  /// Sets the rank whose silence or end is the reason to ask all ranks.
  void set_suspect(int suspect) { suspect_ = suspect; }
  [[nodiscard]] int suspect() const { return suspect_; }
  [[nodiscard]] static bool all_have_responded(const std::vector<Rank>& ranks);
  /// Returns the culprit and sets its `hang` field to a description of the hang. Returns nullopt if
  /// the responses are inconclusive or point to a rank that makes progress; the timers of silent
  /// ranks then restart.
  [[nodiscard]] std::optional<int> find_culprit(std::vector<Rank>& ranks, Time now);

 private:
  struct Step {
    std::int64_t number = -1;
    Time end;
  };

  [[nodiscard]] Time end_of_silence(Time heard) const;
  void reset_silent_timers(const std::vector<Rank>& ranks, Time now);

  static constexpr Duration kLeast{600.0};

  std::optional<Duration> limit_;
  Duration step_based_limit_ = kLeast;  // used if the user gives no limit
  std::vector<std::optional<Time>> last_heartbeats_;
  bool watches_any_ = false;
  Step last_;                   // of rank 0
  std::deque<Duration> steps_;  // the newest step times
  int suspect_ = 0;
  std::optional<Silence> silence_;  // result of the last check
  Time checked_;                    // time of the last check
};

/// Distinguishes a rank that stays stopped, and so holds up all others, from a job that its user
/// has suspended as a whole (Ctrl-Z).
class StoppedRanks {
 public:
  using Time = dtrain::base::Clock::time_point;

  [[nodiscard]] bool is_suspended() const { return is_suspended_; }
  /// Records that the job is suspended or resumed as a whole.
  void suspend(bool suspends) {
    is_suspended_ = suspends;
    since_.clear();
    if (suspends) note_suspension();
  }
  /// Records that a suspension was requested, even if it has no effect.
  void note_suspension() { was_suspended_ = true; }

  /// Returns whether a rank's stop may be the first sign of a suspension: a batch system sends
  /// SIGTSTP to all processes at once.
  [[nodiscard]] bool may_be_suspension(int signal) const {
    return signal == SIGTSTP && !is_suspended_ && !was_suspended_;
  }
  /// Returns whether a suspension stopped the rank only after the job had been resumed.
  [[nodiscard]] bool is_late_suspension(int signal) const {
    return signal == SIGTSTP && was_suspended_;
  }

  void add(int rank, Time now) { since_[rank] = now; }
  void remove(int rank) { since_.erase(rank); }
  [[nodiscard]] bool empty() const { return since_.empty(); }
  /// The ranks that have been stopped for two seconds or longer.
  [[nodiscard]] std::vector<int> overdue(Time now) const {
    constexpr std::chrono::seconds kLimit(2);  // ranks of a job resumed as a whole continue sooner
    std::vector<int> ranks;
    for (const auto& [rank, since] : since_) {
      if (now - since >= kLimit) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  bool is_suspended_ = false;
  bool was_suspended_ = false;
  std::map<int, Time> since_;
};

}  // namespace launcher
