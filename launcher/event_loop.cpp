#include "launcher/event_loop.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace launcher {

EventLoop::EventLoop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  child_signals_ = dtrain::base::Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  watch(child_signals_.get(), {.source = Event::Source::child_stops});
}

void EventLoop::watch(int fd, Event event) const {
  if (fd < 0) return;
  epoll_event entry{};
  entry.events = EPOLLIN;
  entry.data.u64 =
      (static_cast<std::uint64_t>(event.source) << 32) | static_cast<std::uint32_t>(event.rank);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &entry);
}

void EventLoop::unwatch(int fd) const {
  if (fd >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::vector<Event> EventLoop::wait(std::optional<Time> deadline) const {
  constexpr std::int64_t kLongestWait_ms = 60'000;
  int timeout_ms = -1;
  if (deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(*deadline - dtrain::base::Clock::now());
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kLongestWait_ms));
  }
  std::array<epoll_event, 64> entries;
  const int count =
      ::epoll_wait(epoll_.get(), entries.data(), static_cast<int>(entries.size()), timeout_ms);
  std::vector<Event> events;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = entries[static_cast<std::size_t>(i)].data.u64;
    events.push_back({.source = static_cast<Event::Source>(tag >> 32),
                      .rank = static_cast<int>(tag & 0xFFFFFFFF)});
  }
  return events;
}

std::vector<ChildStop> EventLoop::take_child_stops() const {
  signalfd_siginfo ignored{};
  while (::read(child_signals_.get(), &ignored, sizeof(ignored)) > 0) {
  }
  std::vector<ChildStop> stops;
  for (siginfo_t info{};
       ::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) == 0 && info.si_pid != 0;
       info = {}) {
    stops.push_back(
        {.pid = info.si_pid, .continued = info.si_code == CLD_CONTINUED, .signal = info.si_status});
  }
  return stops;
}

}  // namespace launcher
