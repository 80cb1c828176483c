#include "dtrain/base/clock.h"

#include <pthread.h>

#include <atomic>
#include <system_error>
#include <thread>

#include "dtrain/base/host/threads.h"

namespace dtrain::base {
namespace {

constexpr std::chrono::milliseconds kTick(500);
constexpr Clock::duration kLeastStop = std::chrono::seconds(1);

// The time of the last tick (0: not ticking), and the stopped time before it. Each tick writes
// `past_stops` first, and readers read it last: they may briefly count a stop twice (permanently in
// a child forked at that moment), but never miss it.
std::atomic<Clock::rep> last_tick = 0;
std::atomic<Clock::rep> past_stops = 0;
static_assert(decltype(past_stops)::is_always_lock_free, "a child of fork must not inherit a lock");

Clock::rep now() { return Clock::now().time_since_epoch().count(); }

// Takes a late tick for a stop.
Clock::rep stop_within(Clock::rep pause) { return pause > kLeastStop.count() ? pause : 0; }

[[noreturn]] void tick() {
  for (;;) {
    std::this_thread::sleep_for(kTick);
    const Clock::rep time = now();
    past_stops += stop_within(time - last_tick);
    last_tick = time;
  }
}

}  // namespace

void count_suspensions() noexcept {
  last_tick = now();
  ::pthread_atfork(nullptr, nullptr, [] {  // the child has no such thread, and keeps the count
    past_stops = suspended_time().count();
    last_tick = 0;
  });
  try {
    start_without_signals(tick).detach();
  } catch (const std::system_error&) {
    last_tick = 0;
  }
}

Clock::duration suspended_time() noexcept {
  const Clock::rep tick = last_tick;
  const Clock::rep under_way = tick == 0 ? 0 : stop_within(now() - tick);
  return Clock::duration(past_stops + under_way);
}

}  // namespace dtrain::base
