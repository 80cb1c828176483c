#include "dtrain/base/threads.h"

#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::base {

void require_threads(std::int64_t count) {
  std::optional<std::error_code> reason;
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  std::latch may_end(1);
  try {
    while (std::ssize(threads) < count) threads.emplace_back([&] { may_end.wait(); });
  } catch (const std::system_error& error) {
    reason = error.code();
  }
  const auto started = std::ssize(threads);
  may_end.count_down();
  threads.clear();
  if (!reason) return;
  fail(ErrorKind::memory,
       "{} threads are needed, and the system starts only {} ({}): raise the limit of processes "
       "(ulimit -u) or of memory (ulimit -v), or lower --threads",
       count, started, reason->message());
}

}  // namespace dtrain::base
