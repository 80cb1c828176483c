// Waits for the events of a job: readable descriptors, and ranks that were stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/io/descriptor.h"

namespace launcher {

/// A readable descriptor, identified by its purpose.
struct Event {
  enum class Source : std::uint32_t {
    signals,       ///< signals forwarded by the watchdog
    child_stops,   ///< a child was stopped or continued, or ended
    console,       ///< bytes of dtrun's own output were written
    nodes,         ///< messages of other launchers
    rank_end,      ///< a rank's process has ended
    rank_control,  ///< a rank's control socket
    rank_output,   ///< a rank's standard output
    rank_error,    ///< a rank's standard error
  };
  Source source = Source::signals;
  int rank = 0;  ///< in the job; 0 if the source belongs to no rank
};

/// A child that a signal stopped or continued.
struct ChildStop {
  pid_t pid = -1;
  bool continued = false;
  int signal = 0;
};

/// An epoll instance for a job's descriptors, which also reports stopped children.
///
/// Threads: one.
class EventLoop {
 public:
  using Time = dtrain::base::Clock::time_point;

  /// Reports SIGCHLD as child_stops. REQUIRES: SIGCHLD is blocked.
  EventLoop();

  /// Reports `fd` as `event` whenever it is readable; no-op if it is negative. Closing a descriptor
  /// also unwatches it.
  void watch(int fd, Event event) const;
  void unwatch(int fd) const;

  /// Waits for an event, until `deadline` at most. Returns the events in the order in which they
  /// became ready, so that rank_end events come in the order in which the ranks ended.
  [[nodiscard]] std::vector<Event> wait(std::optional<Time> deadline) const;

  /// The children that were stopped or continued since the last call.
  [[nodiscard]] std::vector<ChildStop> take_child_stops() const;

 private:
  dtrain::base::Descriptor epoll_;
  dtrain::base::Descriptor child_signals_;
};

}  // namespace launcher
