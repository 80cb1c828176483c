#include "dtrain/job/ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/local/local_world.h"
#include "dtrain/config/layout.h"
#include "dtrain/device/plugin.h"
#include "dtrain/job/job.h"

namespace dtrain::job {
namespace {

base::RankEnv env_of_thread(const base::RankEnv& process, const comm::World& world) {
  base::RankEnv env = process;
  env.rank = env.local_rank = world.rank();
  env.world_size = env.local_world_size = world.size();
  if (env.rank != 0) env.control_fd = -1;
  return env;
}

// The device that this thread uses; only its kind where even that question fails.
std::string current_device(const config::DeviceName& name) {
  try {
    return c10::impl::VirtualGuardImpl(device::plugin(name.kind).type()).getDevice().str();
  } catch (const c10::Error&) {
    return name.text();
  }
}

// A device that is lost fails in whatever comes next.
int run_body(const config::Config& config, const base::RankEnv& env, const JoinWorld& join,
             const RankBody& body) {
  try {
    return body(env, join);
  } catch (const c10::AcceleratorError& error) {
    const std::string text = error.what_without_backtrace();
    base::fail(base::ErrorKind::device, "device {} was lost: {}",
               current_device(device_of(config, env)), text.substr(0, text.find('\n')));
  }
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
  comm::run_local_ranks(
      config.layout.local_ranks, group_options(config),
      [&](const std::shared_ptr<comm::World>& world) {
        at::set_num_threads(static_cast<int>(config.machine.threads));
        const base::RankEnv env = env_of_thread(process, *world);
        const int own = run_thread(
            env,
            device::world_on(device_of(config, env), env.local_rank, world, group_options(config)),
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
