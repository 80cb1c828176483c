#include "ranks.h"

#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::app {
namespace {

// A launcher ends the other ranks within milliseconds of the first one's failure.
constexpr std::chrono::seconds kWaitToBeEnded{1};

base::ErrorScope scope_of_error = base::ErrorScope::own;

bool first_of_machine() {
  try {
    return base::rank_env_of_process().local_rank == 0;
  } catch (const base::Error&) {
    return true;  // the environment itself is wrong, and each rank's may be in its own way
  }
}

}  // namespace

int report_on_one_rank() {
  if (!base::has_launcher() && !first_of_machine()) std::this_thread::sleep_for(kWaitToBeEnded);
  return base::report_current_exception(scope_of_error);
}

void check_for_all_ranks(const std::function<void()>& check) {
  scope_of_error = base::ErrorScope::all;
  check();
  scope_of_error = base::ErrorScope::own;
}

}  // namespace dtrain::app
