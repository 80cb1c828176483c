// Finds out which rank holds up a job that stands still, and which ones a signal has stopped.
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

/// A rank's oldest open call of one group, or its last one.
struct GroupCall {
  std::uint64_t number = 0;  // within the group
  std::string op;
  std::int64_t bytes = 0;
  bool is_open = false;
  bool is_queued = false;  // open, but not begun
  double seconds = 0;      // since it was made
  int awaited = -1;        // the rank that it needs at this moment; -1: none, or not known
  std::string group;       // named alike in all ranks
};

/// The response of a rank that was asked for its position and its open collectives.
struct RankRecords {
  std::string where;  // "in the backward pass, block 3, of step 12"
  std::vector<GroupCall> calls;
  bool is_whole = false;  // the response is complete
};

/// text: an answer (docs/guide/dtrun.md); lines of another form are passed over.
[[nodiscard]] RankRecords parse_records(std::string_view text);

/// Whom a job that stands still waits for.
struct HangVerdict {
  int culprit = 0;
  std::string text;  // what it did not do, and where it was
};

/// records: of every rank, none for one that was not asked, e.g. since it has ended. A rank waits
/// for those of a group that have not made its open call, and for the one that it says it needs;
/// the culprit is one that gave no answer where others did, or else one that is waited for and
/// waits for nobody.
///
/// Returns: nullopt if no rank waits for another.
[[nodiscard]] std::optional<HangVerdict> hang_verdict(
    const std::vector<std::optional<RankRecords>>& records);

/// Notices silent ranks by their signs of life, and judges what all ranks answer when they are
/// asked where they are. A rank is watched from its first sign, so a program that gives none never is.
/// Times are an ActiveClock's.
///
/// Threads: one.
class HangWatch {
 public:
  using Time = dtrain::base::Clock::time_point;
  using Duration = std::chrono::duration<double>;

  /// How long a rank may be silent, and when that time is over for the one that was for longest.
  struct Silence {
    int rank = 0;
    Time until;
  };

  /// limit: of a silence, to which a second is added, since a rank that is busy says so once a
  /// second; 0: none; nothing: the larger of 10 min and 20 median steps.
  HangWatch(std::optional<Duration> limit, int num_ranks)
      : limit_(limit), heard_(static_cast<std::size_t>(num_ranks)) {}

  /// step: the last one that the rank has done; -1: none yet.
  void heard(int rank, std::int64_t step, Time now);

  /// The rank could not go on until now, through no fault of its own.
  void excuse(int rank, Time now);

  [[nodiscard]] Duration limit() const { return limit_.value_or(of_steps_); }
  /// True if a rank has given a sign of life.
  [[nodiscard]] bool watches_any() const { return watches_any_; }
  /// True if the rank has given a sign of life within the limit.
  [[nodiscard]] bool is_alive(int rank, Time now) const;
  /// Looks at ranks that run. Returns nothing where none is watched.
  [[nodiscard]] std::optional<Silence> longest_silence(const std::vector<Rank>& ranks) const;

  /// A rank that was silent for too long; at most ten looks a second, since each takes all ranks.
  [[nodiscard]] std::optional<int> find_silent(const std::vector<Rank>& ranks, Time now);
  /// The end of the longest silence that find_silent has seen.
  [[nodiscard]] std::optional<Time> next_look() const;

  /// The ranks are being asked because of this one's silence or end.
  void ask(int suspect) { suspect_ = suspect; }
  [[nodiscard]] int suspect() const { return suspect_; }
  [[nodiscard]] static bool all_have_answered(const std::vector<Rank>& ranks);
  /// The rank that all others wait for, whose `hang` then says so; nothing if the answers prove
  /// nothing, or accuse a rank that makes progress: then silent ranks get the limit once more.
  [[nodiscard]] std::optional<int> judge(std::vector<Rank>& ranks, Time now);

 private:
  struct Step {
    std::int64_t number = -1;
    Time end;
  };

  [[nodiscard]] Time end_of_silence(Time heard) const;
  void excuse_silent(const std::vector<Rank>& ranks, Time now);

  static constexpr Duration kLeast{600.0};

  std::optional<Duration> limit_;
  Duration of_steps_ = kLeast;  // the limit where the user gives none
  std::vector<std::optional<Time>> heard_;
  bool watches_any_ = false;
  Step last_;                   // of rank 0
  std::deque<Duration> steps_;  // the newest ones' times
  int suspect_ = 0;
  std::optional<Silence> silence_;  // as last looked for
  Time looked_;                     // when that was
};

/// Tells a rank that stays stopped, and so holds up all others, from a job that its user has
/// suspended as a whole (Ctrl-Z).
class StoppedRanks {
 public:
  using Time = dtrain::base::Clock::time_point;

  [[nodiscard]] bool is_suspended() const { return is_suspended_; }
  /// The job is suspended or continued as a whole.
  void suspend(bool suspends) {
    is_suspended_ = suspends;
    since_.clear();
    if (suspends) note_suspension();
  }
  /// A suspension has been asked for, whatever becomes of it.
  void note_suspension() { was_suspended_ = true; }

  /// Returns whether a rank's stop may precede the news of a suspension: a batch system sends
  /// SIGTSTP to all processes at once.
  [[nodiscard]] bool may_be_suspension(int signal) const {
    return signal == SIGTSTP && !is_suspended_ && !was_suspended_;
  }
  /// Returns whether a rank stopped because of a suspension after it was continued.
  [[nodiscard]] bool is_belated(int signal) const { return signal == SIGTSTP && was_suspended_; }

  void add(int rank, Time now) { since_[rank] = now; }
  void remove(int rank) { since_.erase(rank); }
  [[nodiscard]] bool empty() const { return since_.empty(); }
  /// The ranks that have been stopped for too long.
  [[nodiscard]] std::vector<int> overdue(Time now) const {
    constexpr std::chrono::seconds kLimit(2);  // a job that is stopped as a whole is continued so
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
