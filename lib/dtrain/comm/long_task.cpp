#include "dtrain/comm/long_task.h"

#include <ATen/ops/zeros.h>

#include <chrono>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text.h"
#include "dtrain/base/threads.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::comm {
namespace {

constexpr std::chrono::milliseconds kPoll(500);
constexpr std::chrono::seconds kSlow(60);

}  // namespace

void run_long(ProcessGroup& group, std::string_view what, const std::function<void()>& task) {
  std::exception_ptr failure;
  std::future<void> running;
  if (task) {
    running = base::start_task([&] {
      try {
        task();
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  base::WaitingTimes slow(kSlow);
  bool is_busy = true;
  bool has_failed = false;
  while (is_busy) {
    const bool is_done = !task || running.wait_for(kPoll) == std::future_status::ready;
    if (!is_done && slow.take()) {
      base::log_warning("rank {} has been {} for {}", group.rank(), what,
                        base::readable_time(slow.waited()));
    }
    const at::Tensor state = at::zeros({2}, at::kDouble);  // ranks at work, ranks that failed
    state.data_ptr<double>()[0] = is_done ? 0 : 1;
    state.data_ptr<double>()[1] = is_done && failure ? 1 : 0;
    group.all_reduce(state).wait_host();
    is_busy = state.data_ptr<double>()[0] > 0;
    has_failed = state.data_ptr<double>()[1] > 0;
  }
  if (failure) std::rethrow_exception(failure);
  if (has_failed) {
    base::fail(base::ErrorKind::comm, "another rank failed at {}; its own message tells why", what);
  }
}

void run_long_on_leader(ProcessGroup& group, std::string_view what,
                        const std::function<void()>& task) {
  run_long(group, what, group.rank() == 0 ? task : nullptr);
}

std::string leader_text(ProcessGroup& group, std::string_view what,
                        const std::function<std::string()>& text) {
  std::string own;
  run_long_on_leader(group, what, [&] { own = text(); });
  return exchange_texts(group, own).front();
}

}  // namespace dtrain::comm
