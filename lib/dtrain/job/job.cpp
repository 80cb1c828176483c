#include "dtrain/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/comm/exchange.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/device/out_of_memory.h"
#include "dtrain/device/plugin.h"
#include "dtrain/job/machine_memory.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/tensor_memory.h"
#include "dtrain/model/family.h"
#include "dtrain/net/addresses.h"
#include "dtrain/parallel/plan/fitting.h"
#include "dtrain/param/disk_memory.h"

namespace dtrain::job {
namespace {

// Settings whose defaults follow from a node's cores, GPUs and ranks.
constexpr std::array<std::string_view, 3> kFromNode{"machine.threads", "machine.device",
                                                    "layout.shard_size"};

// Ranks with different recomputation would make different collective calls.
bool plan_depends_on_threads(const config::MachineConfig& machine) {
  return machine.recompute.kind == config::RecomputeSetting::Kind::automatic &&
         machine.memory_limit.count > 0;
}

bool may_differ(const config::Setting& setting, const config::Config& config) {
  if (setting.key == "layout.nnodes" || setting.key == "machine.interface") return true;
  return setting.key == "machine.threads" && !setting.changes_bits(config) &&
         !plan_depends_on_threads(config.machine);
}

// Replaces the backend by the one in use: hier on one host becomes shm.
config::Config with_backend_of(const comm::World& world, config::Config config) {
  for (const config::Choice& choice : choices_of(config.machine.backend)) {
    if (choice.name == world.backend()) {
      config.machine.backend = static_cast<config::Backend>(choice.value);
    }
  }
  return config;
}

// Collective: if planning fails on one rank, all ranks fail at once with its name.
parallel::RankPlan plan_this_rank(const config::Config& requested, comm::World& world) {
  const config::Config config = with_backend_of(world, requested);
  const mesh::DeviceMesh mesh(config::mesh_of(config.layout));
  mesh::check_mesh_size(mesh, world);
  std::optional<parallel::RankPlan> plan;
  comm::run_long(world.control(), "planning its part of the model", [&] {
    try {
      plan.emplace(parallel::rank_plan(config, mesh.coordinate(world.rank())));
    } catch (const parallel::LimitExceeded& error) {
      base::fail(base::ErrorKind::usage, "{}; raise the limit, or use {}", error.what(),
                 parallel::fitting_settings(config, {.bytes = config.machine.memory_limit.count}));
    }
  });
  return std::move(*plan);
}

// Returns advice for a single process whose environment describes several ranks.
std::string waiting_advice(const base::RankEnv& env) {
  const bool starts_all = env.control_fd >= 0 || !env.rendezvous.agent_store_key.empty();
  if (starts_all || (env.source != "RANK" && !env.slurm_step)) return {};
  const std::string start =
      env.slurm_step
          ? fmt::format(
                "srun has started {} tasks, each of which must run dtrain; in a "
                "shell of srun --pty",
                env.world_size)
          : fmt::format("each of the {} must be started with its own RANK; on one machine",
                        env.world_size);
  return fmt::format("{} start all ranks with dtrun --standalone -n {} -- dtrain ...", start,
                     env.world_size);
}

// Two ranks per host report for all, unless this one may have been started alone.
bool may_report_waiting(const base::RankEnv& env) {
  const bool may_be_alone = env.source == "RANK" && env.control_fd < 0;
  return may_be_alone || env.local_rank <= 1;
}

}  // namespace

std::vector<comm::NamedValue> agreed_settings(const config::Config& config) {
  std::vector<comm::NamedValue> agreed;
  for (auto& [key, value] : config::value_texts(config::Command::train, config)) {
    const config::Setting& setting = *config::find_key(key);
    if (may_differ(setting, config)) continue;
    const bool is_from_node = std::ranges::find(kFromNode, key) != kFromNode.end();
    agreed.emplace_back(is_from_node ? fmt::format("{}, which each node derives unless {} sets it",
                                                   key, setting.flag)
                                     : key,
                        std::move(value));
  }
  return agreed;
}

comm::GroupOptions group_options(const config::Config& config) {
  const std::chrono::duration<double> timeout(config.machine.comm_timeout_seconds);
  return {.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout),
          .reduction = parallel::reduction_of(config.machine),
          .shares_devices =
              config.machine.share_devices && !config::strategy_of(config.layout).is_local()};
}

config::DeviceName device_of(const config::Config& config, const base::RankEnv& env) {
  const config::DeviceName& device = config.machine.device;
  const auto& listed = config.layout.devices.devices;
  if (listed.empty() || !config::strategy_of(config.layout).is_local()) return device;
  const auto& own = listed.at(static_cast<std::size_t>(env.local_rank));
  return own ? config::DeviceName{device.kind, own} : config::DeviceName{"cpu"};
}

std::string rendezvous_addr(const base::RankEnv& env) {
  if (!env.rendezvous.master_addr.empty()) return env.rendezvous.master_addr;
  const bool spans_nodes = env.slurm_step && env.num_nodes != 1;
  return spans_nodes ? net::address_of_first_node(*env.slurm_step) : "127.0.0.1";
}

std::shared_ptr<comm::World> make_world(const config::Config& config, const base::RankEnv& env) {
  const std::string& interface = config.machine.interface;
  if (!interface.empty() && env.world_size > 1 && !config.machine.device.is_cpu()) {
    base::set_nccl_interface(net::find_interface(interface, "--interface").name);
  }
  auto host = comm::create_world(
      {.backend = std::string(text_of(config.machine.backend)),
       .rank = env.rank,
       .size = env.world_size,
       .master_addr = rendezvous_addr(env),
       .master_port = env.rendezvous.store_port(),
       .store = env.rendezvous.store,
       .interface = interface.empty() ? env.gloo_interfaces : interface,
       .interface_source = interface.empty() ? "GLOO_SOCKET_IFNAME" : "--interface",
       .is_one_host = env.num_nodes == 1,
       .token = env.rendezvous.job_token,
       .token_file = env.rendezvous.job_token_file,
       .agent_store_key = env.rendezvous.agent_store_key,
       .reports_waiting = may_report_waiting(env),
       .waiting_advice = waiting_advice(env),
       .group = group_options(config),
       .count_memory = metrics::count_other_memory});
  return on_device(config, env, std::move(host));
}

std::shared_ptr<comm::World> on_device(const config::Config& config, const base::RankEnv& env,
                                       std::shared_ptr<comm::World> host) {
  const config::DeviceName name = device_of(config, env);
  auto world =
      device::make_device_world(name, env.local_rank, std::move(host), group_options(config));
  const std::int64_t limit = config.machine.memory_limit.count;
  if (limit > 0 && !name.is_cpu()) device::plugin(name.kind).limit_memory(world->device(), limit);
  return world;
}

Job::Job(const config::Config& config, std::shared_ptr<comm::World> world)
    : world_(std::move(world)),
      whole_model_(model::make_model(config.model, config.data.seq_len, {},
                                     parallel::compute_options_of(config.machine))),
      plan_(plan_this_rank(config, *world_)),
      groups_(*world_, mesh::DeviceMesh(config::mesh_of(config.layout)),
              parallel::mesh_subgroups(config, plan_.options)),
      cpus_(agree_on_cpu_types(world_->control(), cpu_type(), config.machine.mixed_cpus)) {
  const c10::Device device = world_->device();
  check_machine_memory(config, world_->control(), plan_.memory);
  if (!device.is_cpu()) warn_of_memory_limit(config);
  if (const std::string& folder = plan_.options.offload.folder; !folder.empty()) {
    param::DiskMemory::check_free_space(folder, plan_.memory.state);
  }
  device::with_oom_context(
      device, [] { return "while allocating parameters, gradients and optimizer state"; },
      [&] {
        engine_ =
            std::make_unique<parallel::StepEngine>(*plan_.model, *world_, groups_, plan_.options);
      });
  if (cpus_.are_mixed) engine_->whole_model().make_copies_equal();
  check_ranks_agree(config);
}

// On a device the allocator enforces the limit; the prediction only warns.
void Job::warn_of_memory_limit(const config::Config& config) const {
  const config::ByteSize& limit = config.machine.memory_limit;
  const std::int64_t predicted = plan_.memory.peak();
  if (limit.count == 0 || predicted <= limit.count || world_->rank() != 0) return;
  base::log_warning("--memory-limit {}: each rank is predicted to need {}; {}; use {}", limit,
                    metrics::format_bytes(predicted), parallel::largest_part(plan_.memory),
                    parallel::fitting_settings(config, {.bytes = limit.count}));
}

void Job::check_ranks_agree(const config::Config& config) const {
  std::vector<comm::NamedValue> values = agreed_settings(config);
  for (const param::ParameterSpec& spec : whole_model_->parameters) {
    values.emplace_back("shape of " + spec.name, fmt::format("{}", spec.shape));
  }
  // Ranks that round differently compute different norms of the same weights.
  const double norm = engine_->parameter_norm();
  if (!cpus_.are_mixed)
    values.emplace_back("norm of the initial weights", fmt::format("{:a}", norm));
  comm::check_agreement(world_->control(), values);
}

}  // namespace dtrain::job
