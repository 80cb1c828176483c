// Clocks of a job: time excluding suspensions of this process, and time spent in useful steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/base/clock.h"
#include "dtrain/base/text/text.h"

namespace launcher {

/// A clock that excludes the time for which this process was stopped (SIGSTOP, a suspended job), so
/// that this time does not count towards timeouts for other processes. A gap of more than two
/// seconds between two calls of now() counts as a stop: call it at least once a second.
///
/// Threads: one.
class ActiveClock {
 public:
  using Time = dtrain::base::Clock::time_point;
  static constexpr std::chrono::seconds kMostBetweenCalls{1};

  Time now() {
    const Time time = dtrain::base::Clock::now();
    if (time - last_ > kLeastStop) stopped_ += time - last_;
    last_ = time;
    return time - stopped_;
  }
  /// Converts a time of this clock to dtrain::base::Clock, assuming no further stops.
  [[nodiscard]] Time on_wall(Time time) const { return time + stopped_; }

 private:
  static constexpr std::chrono::seconds kLeastStop{2};

  Time last_ = dtrain::base::Clock::now();
  dtrain::base::Clock::duration stopped_{0};
};

/// The time of an event, by three clocks.
struct Moment {
  using Time = dtrain::base::Clock::time_point;

  Time active;          ///< an ActiveClock's; deadlines and hang timeouts use it
  Time wall;            ///< dtrain::base::Clock's
  std::int64_t ns = 0;  ///< since the start of the attempt, as in RankEnd::time_ns
};

/// The clock of one attempt to run a job, which starts with it.
///
/// Threads: one.
class AttemptClock {
 public:
  using Time = Moment::Time;

  [[nodiscard]] Time start() const { return start_; }
  /// Call it at least once a second, as ActiveClock::now().
  Moment now() {
    const Time active = active_.now();
    const Time wall = dtrain::base::Clock::now();
    const auto since_start = std::chrono::duration_cast<std::chrono::nanoseconds>(wall - start_);
    return {.active = active, .wall = wall, .ns = since_start.count()};
  }
  /// As ActiveClock::on_wall.
  [[nodiscard]] Time on_wall(Time active) const { return active_.on_wall(active); }

 private:
  ActiveClock active_;
  Time start_ = dtrain::base::Clock::now();
};

/// "0.1 s".
[[nodiscard]] inline std::string readable_ns(std::int64_t ns) {
  constexpr double kNanosecond = 1e-9;
  return dtrain::base::readable_time(static_cast<double>(ns) * kNanosecond);
}

/// Measures effective training time and recovery times from the steps that rank 0 reports.
///
/// A step counts only the first time it is completed, because a restarted job repeats the steps
/// after its checkpoint. The time of a step is the time since the previous report in the same
/// attempt, including evaluations and saves. The first step of an attempt therefore counts as
/// startup.
///
/// Threads: one.
class StepClock {
 public:
  using Time = dtrain::base::Clock::time_point;
  using Seconds = std::chrono::duration<double>;

  void begin_attempt() {
    last_.reset();
    recovery_.reset();
  }
  /// step: the newest completed step; no-op if it is not newer.
  /// Returns: whether the job has recovered with this step.
  bool report(std::int64_t step, Time now) {
    if (step < 0 || (last_ && step <= last_->step)) return false;
    const bool is_new = step > highest_;
    const bool recovers = is_new && failed_;
    if (recovers) recovery_ = now - *std::exchange(failed_, std::nullopt);
    if (is_new && last_ && last_->step >= highest_) useful_ += now - last_->time;
    if (is_new) highest_ = step;
    last_ = Report{step, now};
    return recovers;
  }
  /// Records a failure. The job recovers with the first step that no attempt had completed before.
  void fail(Time when) {
    if (!failed_) failed_ = when;
  }

  /// The time of the steps that advanced the job.
  [[nodiscard]] Seconds useful() const { return useful_; }
  /// Time from the failure to the recovery, if the newest attempt has recovered. After several
  /// failures without recovery, from the first one.
  [[nodiscard]] std::optional<Seconds> recovery() const { return recovery_; }

 private:
  struct Report {
    std::int64_t step;
    Time time;
  };

  std::int64_t highest_ = 0;    // highest step that any attempt has completed
  std::optional<Report> last_;  // of this attempt
  std::optional<Time> failed_;  // time of a failure without recovery
  std::optional<Seconds> recovery_;
  Seconds useful_{0};
};

}  // namespace launcher
