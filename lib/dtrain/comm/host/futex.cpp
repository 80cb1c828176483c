#include "dtrain/comm/host/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace dtrain::comm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

bool sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t expected,
              std::chrono::nanoseconds limit) {
  constexpr std::int64_t kNanos = 1'000'000'000;
  timespec time{};
  time.tv_sec = limit.count() / kNanos;
  time.tv_nsec = limit.count() % kNanos;
  // Without FUTEX_PRIVATE_FLAG: the sleepers may be other processes.
  const long result = ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
  return result == 0 || errno != ETIMEDOUT;
}

void wake_all(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace dtrain::comm
