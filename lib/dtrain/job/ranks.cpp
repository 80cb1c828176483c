#include "dtrain/job/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <string>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/local/local_world.h"
#include "dtrain/config/layout.h"
#include "dtrain/job/device_errors.h"
#include "dtrain/job/job.h"
#include "dtrain/metrics/format.h"
#include "dtrain/parallel/plan/fitting.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::job {
namespace {

base::RankEnv env_of_thread(const base::RankEnv& process, const comm::World& world) {
  base::RankEnv env = process;
  env.rank = env.local_rank = world.rank();
  env.world_size = env.local_world_size = world.size();
  if (env.rank != 0) env.control_fd = -1;
  return env;
}

// What the first rank was predicted to hold; empty where nothing was.
std::string predicted_part(const config::Config& config) {
  const bool is_planned = config.batch.microbatch > 0 && config.batch.grad_accum > 0 &&
                          config.layout.strategy != config::Strategy::automatic;
  if (!is_planned) return {};
  using mesh::Axis;
  try {
    const auto plan = parallel::rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}});
    return fmt::format("; of {} predicted {}", metrics::format_bytes(plan.memory.peak()),
                       parallel::largest_part(plan.memory));
  } catch (const base::Error&) {
    return {};
  }
}

int run_body(const config::Config& config, const base::RankEnv& env, const JoinWorld& join,
             const RankBody& body) {
  int status = 0;
  try {
    report_device_errors(device_of(config, env), advice_for(config),
                         [&] { status = body(env, join); });
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::memory) throw;
    base::fail(error.kind(), "{}{}", error.what(), predicted_part(config));
  }
  return status;
}

int run_thread(const base::RankEnv& env, const std::shared_ptr<comm::World>& world,
               const RankBody& body) {
  try {
    return body(env, [&] { return world; });
  } catch (const base::Error& error) {
    const bool is_of_all = error.kind() == base::ErrorKind::usage ||
                           error.kind() == base::ErrorKind::numerics ||
                           error.kind() == base::ErrorKind::comm;
    if (is_of_all) throw;
    base::fail(error.kind(), "rank {}: {}", env.rank, error.what());
  }
}

}  // namespace

int run_ranks(const config::Config& config, const RankBody& body) {
  const base::RankEnv process = base::rank_env_of_process();
  if (!config::strategy_of(config.layout).is_local()) {
    return run_body(
        config, process, [&] { return make_world(config, process); }, body);
  }
  int status = 0;
  comm::run_local_ranks(config.layout.local_ranks, group_options(config),
                        [&](const std::shared_ptr<comm::World>& world) {
                          at::set_num_threads(static_cast<int>(config.machine.threads));
                          const base::RankEnv env = env_of_thread(process, *world);
                          const int own =
                              run_thread(env, on_device(config, env, world),
                                         [&](const base::RankEnv& rank, const JoinWorld& join) {
                                           return run_body(config, rank, join, body);
                                         });
                          if (world->rank() == 0) status = own;
                        });
  return status;
}

std::int64_t sum_of_process(const config::Config& config, comm::ProcessGroup& world,
                            std::int64_t bytes) {
  const bool is_shared =
      config::strategy_of(config.layout).is_local() && config.machine.device.is_cpu();
  if (!is_shared) return bytes;
  std::int64_t sum = 0;
  for (const std::string& text : comm::exchange_texts(world, std::to_string(bytes))) {
    sum += std::stoll(text);
  }
  return sum;
}

}  // namespace dtrain::job
