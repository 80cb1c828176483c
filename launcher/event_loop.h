// Waits for what happens to a job: descriptors that became readable, and ranks that were stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// A readable descriptor, by what it stands for.
struct Event {
  enum class Source : std::uint32_t {
    signals,       ///< signals that the parent process passes on
    child_stops,   ///< a child was stopped or continued, or ended
    console,       ///< bytes of dtrun's own output were written
    nodes,         ///< messages of other launchers
    rank_end,      ///< a rank's process has ended
    rank_control,  ///< a rank's control socket
    rank_output,   ///< a rank's standard output
    rank_error,    ///< a rank's standard error
  };
  Source source = Source::signals;
  int rank = 0;  ///< in the job; 0 for sources that are no rank's
};

/// A child that a signal stopped or continued.
struct ChildStop {
  pid_t pid = -1;
  bool continued = false;
  int signal = 0;
};

/// Threads: one.
class EventLoop {
 public:
  using Time = dtrain::base::Clock::time_point;

  /// Reports SIGCHLD as child_stops. REQUIRES: SIGCHLD is blocked.
  EventLoop();

  /// Reports `fd` as `event` whenever it is readable; no-op if it is negative. A closed descriptor
  /// is dropped by itself.
  void watch(int fd, Event event) const;
  void unwatch(int fd) const;

  /// Waits for an event, until `deadline` at most. Returns the events in the order in which they
  /// became ready, so that ranks' ends come in the order of their deaths.
  [[nodiscard]] std::vector<Event> wait(std::optional<Time> deadline) const;

  /// The children that were stopped or continued since the last call.
  [[nodiscard]] std::vector<ChildStop> take_child_stops() const;

 private:
  dtrain::base::Descriptor epoll_;
  dtrain::base::Descriptor child_signals_;
};

}  // namespace launcher
