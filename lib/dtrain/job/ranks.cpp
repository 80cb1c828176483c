#include "dtrain/job/ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/comm/local/local_world.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/device/out_of_memory.h"
#include "dtrain/device/plugin.h"
#include "dtrain/job/job.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/parallel/plan/fitting.h"
#include "dtrain/parallel/plan/rank_plan.h"

namespace dtrain::job {
namespace {

using base::ErrorKind;

c10::Device current_device(const config::DeviceName& name) {
  return c10::impl::VirtualGuardImpl(device::plugin(name.kind).type()).getDevice();
}

// Falls back to the device's kind if the query fails.
std::string text_of_current(const config::DeviceName& name) {
  try {
    return current_device(name).str();
  } catch (const c10::Error&) {
    return name.text();
  }
}

std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

[[noreturn]] void fail(const config::DeviceName& name, const DeviceAdvice& advice,
                       const c10::AcceleratorError& error) {
  const std::string device = text_of_current(name);
  const std::string text = first_line(error);
  switch (device::plugin(name.kind).failure_of(error.get_error_code())) {
    case device::Failure::device_lost:
      base::fail(ErrorKind::device, "device {} was lost: {}; {}", device, text, advice.if_lost);
    case device::Failure::out_of_memory:
      base::fail(ErrorKind::memory, "out of memory on {}: {}; {}", device, text, advice.if_full);
    case device::Failure::other:
      break;
  }
  base::fail(ErrorKind::internal, "device {} failed: {}", device, text);
}

[[noreturn]] void fail(const config::DeviceName& name, const DeviceAdvice& advice,
                       const device::DeviceOutOfMemory& error) {
  const std::int64_t peak = metrics::memory_use(current_device(name)).peak;
  base::fail(ErrorKind::memory, "{} Tensors took {} at the peak; {}", error.what(),
             metrics::format_bytes(peak), advice.if_full);
}

base::RankEnv env_of_thread(const base::RankEnv& process, const comm::World& world) {
  base::RankEnv env = process;
  env.rank = env.local_rank = world.rank();
  env.world_size = env.local_world_size = world.size();
  if (env.rank != 0) env.control_fd = -1;
  return env;
}

// Returns the first rank's predicted memory as text; empty if the job is not planned.
std::string predicted_part(const config::Config& config) {
  const bool is_planned = config.batch.microbatch > 0 && config.batch.grad_accum > 0 &&
                          config.layout.strategy != config::Strategy::automatic;
  if (!is_planned) return {};
  using mesh::Axis;
  try {
    const auto plan = parallel::rank_plan(config, {{Axis::pp, 0}, {Axis::dp, 0}, {Axis::tp, 0}});
    return fmt::format("; {} predicted, of which {}", metrics::format_bytes(plan.memory.peak()),
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
    const bool is_on_all_ranks = error.kind() == base::ErrorKind::usage ||
                                 error.kind() == base::ErrorKind::numerics ||
                                 error.kind() == base::ErrorKind::comm;
    if (is_on_all_ranks) throw;
    base::fail(error.kind(), "rank {}: {}", env.rank, error.what());
  }
}

}  // namespace

DeviceAdvice advice_for(const config::Config& config) {
  const config::MachineConfig& machine = config.machine;
  std::vector<std::string> help;
  if (machine.recompute.kind == config::RecomputeSetting::Kind::none) {
    help.emplace_back("--recompute level");
  }
  if (config.batch.microbatch > 1) {
    help.emplace_back("a smaller --microbatch (more --grad-accum makes up for it)");
  }
  help.emplace_back("a smaller --seq-len or model");
  if (machine.compile) {
    help.emplace_back("no --compile");
  } else if (machine.offload.kind != config::Offload::Kind::all) {
    help.emplace_back("--offload all");
  }
  const bool is_shared = config::sharding_of(config.layout) == config::Sharding::parameters;
  help.emplace_back(is_shared ? "more ranks" : "ranks that share the model (--strategy fsdp)");
  if (machine.memory_limit.count > 0) help.emplace_back("a larger --memory-limit");
  return {.if_full = fmt::format("use {}", fmt::join(help, ", or ")),
          .if_lost = "check it and start again; --resume auto resumes from the latest checkpoint"};
}

void report_device_errors(const config::DeviceName& name, const DeviceAdvice& advice,
                          const std::function<void()>& work) {
  if (name.is_cpu()) return work();
  try {
    work();
  } catch (const c10::AcceleratorError& error) {
    fail(name, advice, error);
  } catch (const c10::OutOfMemoryError& error) {
    fail(name, advice, device::DeviceOutOfMemory(current_device(name), /*part=*/"", error));
  } catch (const device::DeviceOutOfMemory& error) {
    fail(name, advice, error);
  }
}

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
