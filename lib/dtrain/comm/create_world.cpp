#include "dtrain/comm/create_world.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/plugin_file.h"
#include "dtrain/comm/backend_plugin.h"
#include "dtrain/comm/cpu_world.h"
#include "dtrain/comm/gloo/gloo_groups.h"
#include "dtrain/comm/gloo/gloo_transport.h"
#include "dtrain/comm/hier/hier_groups.h"
#include "dtrain/comm/host/host_survey.h"
#include "dtrain/comm/shm/shm_groups.h"
#include "dtrain/comm/slices.h"
#include "dtrain/comm/torchrun/notice.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

std::shared_ptr<Rendezvous> meet(const WorldOptions& options) {
  const base::Deadline deadline(options.group.timeout);
  const bool uses_network = options.store.rendezvous_fd < 0;
  MeetingPlace place{
      .rank = options.rank,
      .size = options.size,
      .store = options.store,
      .master_addr = options.master_addr,
      .master_port = options.master_port,
      .token = uses_network ? net::job_secret(options.token, options.token_file) : "",
      .is_one_host = options.is_one_host,
      .publish = {},
      .tells_of_waiting = options.tells_of_waiting,
      .waiting_advice = options.waiting_advice};
  if (uses_network && !options.agent_store_key.empty()) {
    meet_through_torchrun(place, options.agent_store_key, deadline);
  }
  return meet_all_ranks(place, deadline);
}

/// The world of ranks that have met. Rank 0 serves the store until all have ended the meeting.
std::shared_ptr<World> rendezvous_world(const WorldOptions& options,
                                        const std::shared_ptr<Rendezvous>& rendezvous,
                                        CpuBackend backend) {
  backend.end_meeting = [rendezvous] {
    rendezvous->store->leave();
    if (rendezvous->server) rendezvous->server->finish();
  };
  return std::make_shared<CpuWorld>(options.rank, options.size, options.group, std::move(backend));
}

/// The world of ranks that share memory with those of their host; null where they cannot, unless
/// the backend is shm, or where each is on a host of its own.
std::shared_ptr<World> create_sharing_world(const WorldOptions& options,
                                            const std::shared_ptr<Rendezvous>& rendezvous) {
  const base::Deadline deadline(options.group.timeout);
  HostSurvey survey = survey_hosts(
      {.rank = options.rank, .size = options.size, .count_memory = options.count_memory},
      *rendezvous->store, deadline);
  const std::vector<std::int64_t> hosts = survey.host_of_rank;
  const std::int64_t num_hosts = survey.num_hosts();
  std::string obstacle = survey.obstacle;
  if (obstacle.find(std::strerror(EMFILE)) != std::string::npos) {  // gloo needs more of them
    fail_together(options.rank, base::Error(base::ErrorKind::comm, obstacle));
  }
  if (options.backend == "shm") {
    if (num_hosts > 1 && obstacle.empty()) {
      obstacle = fmt::format("ranks 0 and {} are on different hosts",
                             std::ranges::find(hosts, 1) - hosts.begin());
    }
    if (!obstacle.empty()) {
      fail_together(options.rank,
                    base::Error(base::ErrorKind::usage,
                                "--backend shm: " + obstacle + "; use --backend gloo or hier"));
    }
  }
  if (!obstacle.empty() || (num_hosts > 1 && num_hosts == options.size)) return nullptr;
  const auto shm =
      std::make_shared<ShmGroups>(options, rendezvous, share_memory(std::move(survey), deadline));
  const auto allocate = [shm](std::int64_t bytes) { return shm->allocate(bytes); };
  if (num_hosts == 1) {
    const auto connect = [shm](const GroupIdentity& identity) {
      return shm->connect(identity.key(), identity);
    };
    return rendezvous_world(options, rendezvous, {"shm", connect, allocate});
  }
  const auto hier = std::make_shared<HierGroups>(options, rendezvous, shm, hosts);
  const auto connect = [hier](const GroupIdentity& identity) { return hier->connect(identity); };
  return rendezvous_world(options, rendezvous, {"hier", connect, allocate});
}

std::shared_ptr<World> create_gloo_world(const WorldOptions& options,
                                         const std::shared_ptr<Rendezvous>& rendezvous) {
  const auto gloo = std::make_shared<GlooGroups>(options, rendezvous);
  const auto connect = [gloo](const GroupIdentity& identity) {
    return gloo->connect(identity.key(), identity);
  };
  const auto allocate = [count = options.count_memory](std::int64_t bytes) {
    return mapped_memory(bytes, count);
  };
  return rendezvous_world(options, rendezvous, {"gloo", connect, allocate});
}

/// The world of the plugin of this name.
///
/// Throws: Error{usage} naming the file that cannot be loaded, why, and what to do.
std::shared_ptr<World> create_plugin_world(const std::string& name, const WorldOptions& options) {
  using Entry = BackendPlugin& (*)();
  const base::PluginFile file = base::open_plugin(name, "dtrain_backend_plugin");
  if (file.entry == nullptr) {
    base::fail(
        base::ErrorKind::usage,
        "--backend {}: cannot load {}: {}; scripts/build.sh dtrain_{} builds it where Debian's "
        "libopenmpi-dev is installed, and it needs libopenmpi3 to run; or use --backend gloo",
        name, file.path.empty() ? "libdtrain_" + name + ".so" : file.path, file.obstacle, name);
  }
  BackendPlugin& plugin = reinterpret_cast<Entry>(file.entry)();
  if (plugin.interface() != kBackendInterface) {
    base::fail(base::ErrorKind::usage,
               "--backend {}: {} is of another version of dtrain (interface {}, this is {}); "
               "install both from one build",
               name, file.path, plugin.interface(), kBackendInterface);
  }
  return plugin.create_world(options);
}

}  // namespace

std::shared_ptr<World> create_world(const WorldOptions& options) {
  using base::ErrorKind;
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    base::fail(ErrorKind::usage,
               "rank {} of a world of {} makes no sense; RANK must be from 0 to WORLD_SIZE - 1",
               options.rank, options.size);
  }
  const bool alone = options.size == 1;
  const std::string& backend = options.backend;
  if (backend == "none" || (backend == "auto" && alone)) {
    if (!alone) {
      base::fail(ErrorKind::usage,
                 "machine.backend none serves one rank, but {} were started; use auto",
                 options.size);
    }
    return std::make_shared<CpuWorld>(0, 1, options.group, CpuBackend{.name = "local"});
  }
  if (backend == "mpi") return create_plugin_world(backend, options);
  if (backend == "gloo" || backend == "shm" || backend == "hier" || backend == "auto") {
    // c10d writes warnings with stack traces to standard error for errors that we report in one
    // line. Set once: all threads share LibTorch's flag.
    [[maybe_unused]] static const int level = FLAGS_caffe2_log_level = c10::GLOG_FATAL;
    if (alone && options.store.rendezvous_fd < 0 && options.master_port == 0) {
      base::fail(ErrorKind::usage,
                 "--backend {} needs several ranks, and this process was started alone: start them "
                 "with dtrun, or use --backend auto",
                 backend);
    }
    const bool is_port = options.master_port >= 1 && options.master_port <= 65'535;
    if (options.store.rendezvous_fd < 0 && !is_port) {
      base::fail(ErrorKind::usage,
                 "the store's port is {}; start the ranks with dtrun, or give each the same "
                 "MASTER_ADDR and MASTER_PORT (1 to 65535)",
                 options.master_port);
    }
    const auto rendezvous = meet(options);
    const auto sharing = backend == "gloo" ? nullptr : create_sharing_world(options, rendezvous);
    return sharing ? sharing : create_gloo_world(options, rendezvous);
  }
  base::fail(ErrorKind::usage, "machine.backend is '{}'; choose auto, none, shm, gloo, hier or mpi",
             backend);
}

std::int64_t group_memory(std::string_view backend, const PlannedGroup& group) {
  const GroupLoad& load = group.load;
  if (load.size == 1) return 0;  // nothing is sent
  if (backend == "gloo") {
    return GlooTransport::bytes({.size = load.size, .reduced = group.added_over_gloo()});
  }
  if (backend == "hier") return hier_group_memory(group);
  if (backend == "mpi") return 2 * staging_bytes(load.size);  // of MpiTransport
  return backend == "shm" || backend == "auto" ? shm_group_memory(group) : 0;
}

}  // namespace dtrain::comm
