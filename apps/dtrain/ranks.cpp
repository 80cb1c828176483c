#include "ranks.h"

#include <chrono>
#include <thread>

#include "dtrain/base/error.h"
#include "dtrain/base/host/process.h"
#include "dtrain/base/launcher_link.h"
#include "dtrain/base/log.h"
#include "dtrain/base/rank_env.h"

namespace dtrain::app {
namespace {

// A launcher ends the other ranks within milliseconds of the first failure.
constexpr std::chrono::seconds kLauncherGracePeriod{1};

base::ErrorScope scope_of_error = base::ErrorScope::own;

// If the environment is invalid, every rank counts as first, since their errors may differ.
bool is_first(std::int64_t base::RankEnv::*rank) {
  try {
    return base::rank_env_of_process().*rank == 0;
  } catch (const base::Error&) {
    return true;
  }
}

}  // namespace

void report_stops_on_one_rank(const char* rest) {
  const bool is_named = !base::has_launcher();  // dtrun reports the signal itself
  base::print_on_stop_signal(
      is_first(&base::RankEnv::rank) ? rest : nullptr,
      is_named ? base::StopLine::with_signal : base::StopLine::without_signal);
}

void print_once(std::string_view text) {
  if (base::has_launcher() && !is_first(&base::RankEnv::rank)) return;
  base::request_plain_output();
  base::print(text);
}

int report_error_once() {
  if (!base::has_launcher() && !is_first(&base::RankEnv::local_rank))
    std::this_thread::sleep_for(kLauncherGracePeriod);
  return base::report_current_exception(scope_of_error);
}

void require_one_process(std::string_view command) {
  const std::int64_t ranks = base::rank_env_of_process().world_size;
  if (ranks == 1) return;
  base::fail(base::ErrorKind::usage,
             "dtrain {} was launched with {} ranks, but runs as one process", command, ranks);
}

void check_for_all_ranks(const std::function<void()>& check) {
  scope_of_error = base::ErrorScope::all;
  check();
  scope_of_error = base::ErrorScope::own;
}

}  // namespace dtrain::app
