// Ranks of this node that a signal has stopped.
#pragma once

#include <signal.h>

#include <chrono>
#include <map>
#include <vector>

#include "dtrain/base/clock.h"

namespace launcher {

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
