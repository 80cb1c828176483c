#include "dtrain/comm/create_world.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"
#include "dtrain/base/log.h"
#include "dtrain/base/text/number.h"
#include "dtrain/base/text/text.h"
#include "dtrain/comm/cpu_world.h"
#include "dtrain/comm/internal/gloo/gloo_groups.h"
#include "dtrain/comm/internal/gloo/gloo_transport.h"
#include "dtrain/comm/internal/hier/hier_transport.h"
#include "dtrain/comm/internal/host/host_topology.h"
#include "dtrain/comm/internal/shm/shm_transport.h"
#include "dtrain/comm/reduce.h"
#include "dtrain/net/proof.h"

namespace dtrain::comm {

namespace {

using base::ErrorKind;

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

/// A key of torchrun's store, which rank 0 sets and removes at the end.
class AgentStoreKey {
 public:
  AgentStoreKey(const RendezvousOptions& own, std::string key, const base::Deadline& deadline)
      : is_own_(own.rank == 0),
        key_(std::move(key)),
        deadline_(deadline),
        where_(fmt::format("{}:{}", own.master_addr, own.master_port)) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(own.master_port);
    options.timeout = deadline.remaining();
    attempt("cannot reach it",
            [&] { client_ = c10::make_intrusive<c10d::TCPStore>(own.master_addr, options); });
  }

  ~AgentStoreKey() {
    try {
      if (is_own_) client_->deleteKey(key_);
    } catch (...) {
      // torchrun has ended, and its store with it.
    }
  }
  AgentStoreKey(const AgentStoreKey&) = delete;
  AgentStoreKey& operator=(const AgentStoreKey&) = delete;

  void set(const std::string& text) {
    attempt("cannot store rank 0's port",
            [&] { client_->set(key_, std::vector<std::uint8_t>(text.begin(), text.end())); });
  }

  [[nodiscard]] std::string get(base::WaitReporter* waiting) {
    constexpr std::chrono::milliseconds kPause(20);
    std::vector<std::uint8_t> value;
    attempt("rank 0 has not published its port", [&] {
      while (!client_->check({key_})) {
        if (deadline_.passed()) throw std::runtime_error("timed out");
        if (waiting != nullptr) waiting->report([] { return "rank 0"; });
        std::this_thread::sleep_for(kPause);
      }
      value = client_->get(key_);
    });
    return {value.begin(), value.end()};
  }

  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  template <typename Call>
  void attempt(const char* what, Call call) {
    try {
      call();
    } catch (const std::exception& caught) {
      const std::string_view text = caught.what();
      base::fail(deadline_.passed() ? ErrorKind::timeout : ErrorKind::comm,
                 "torchrun's store at {} (MASTER_ADDR, MASTER_PORT): {} within {}: {}", where_,
                 what, base::readable_time(base::Seconds(deadline_.limit()).count()),
                 base::printable(text.substr(0, text.find('\n'))));
    }
  }

  bool is_own_;
  std::string key_;
  base::Deadline deadline_;
  std::string where_;
  c10::intrusive_ptr<c10d::TCPStore> client_;
};

/// torchrun's own store occupies MASTER_ADDR:MASTER_PORT, so rank 0 listens at a free port and
/// publishes it under `key` in that store, together with a secret for the job if ranks of several
/// hosts have none. Whoever reaches the store can read both.
///
/// Completes `own`: rank 0 will publish its port, and removes the key when `own` is destroyed, so
/// that the next program does not find it; any other rank waits for the key and reads port and
/// secret. key: equal on all ranks.
///
/// Throws: Error{timeout} or Error{comm} naming the store's address.
void rendezvous_through_torchrun(RendezvousOptions& own, const std::string& key,
                                 const base::Deadline& deadline) {
  const auto agent_key = std::make_shared<AgentStoreKey>(own, key, deadline);
  if (own.rank == 0) {
    const bool needs_secret = own.token.empty() && !own.is_one_host;
    const std::string secret = needs_secret ? hexadecimal(net::new_challenge()) : "";
    if (needs_secret) own.token = secret;
    own.master_port = 0;
    own.publish = [agent_key, secret](std::int64_t port) {
      agent_key->set(fmt::format("{} {}", port, secret));
    };
    return;
  }
  base::WaitReporter waiting(deadline.limit(), own.waiting_advice);
  const std::string text = agent_key->get(own.reports_waiting ? &waiting : nullptr);
  const auto space = text.find(' ');
  const auto port = base::number_in<std::int64_t>(text.substr(0, space));
  if (space == std::string::npos || !port || *port < 1 || *port > 65'535) {
    base::fail(ErrorKind::comm, "torchrun's store at {} has a malformed address of rank 0: \"{}\"",
               agent_key->where(), base::printable(text, 40));
  }
  own.master_port = *port;
  if (own.token.empty()) own.token = text.substr(space + 1);
}

std::shared_ptr<Rendezvous> run_rendezvous(const WorldOptions& options) {
  const base::Deadline deadline(options.group.timeout);
  const bool uses_network = options.store.rendezvous_fd < 0;
  RendezvousOptions own{
      .rank = options.rank,
      .size = options.size,
      .store = options.store,
      .master_addr = options.master_addr,
      .master_port = options.master_port,
      .token = uses_network ? net::job_secret(options.token, options.token_file) : "",
      .is_one_host = options.is_one_host,
      .publish = {},
      .reports_waiting = options.reports_waiting,
      .waiting_advice = options.waiting_advice};
  if (uses_network && !options.agent_store_key.empty()) {
    rendezvous_through_torchrun(own, options.agent_store_key, deadline);
  }
  return join_rendezvous(own, deadline);
}

/// Creates a world after the rendezvous. Rank 0 serves the store until all ranks have closed it.
std::shared_ptr<World> rendezvous_world(const WorldOptions& options,
                                        const std::shared_ptr<Rendezvous>& rendezvous,
                                        CpuBackend backend) {
  backend.close_rendezvous = [rendezvous] {
    rendezvous->store->leave();
    if (rendezvous->server) rendezvous->server->finish();
  };
  return std::make_shared<CpuWorld>(options.rank, options.size, options.group, std::move(backend));
}

/// Creates a world of ranks that share memory within their hosts. Returns null if they cannot and
/// the backend is not shm, or if each rank is on a host of its own.
std::shared_ptr<World> create_shared_memory_world(const WorldOptions& options,
                                                  const std::shared_ptr<Rendezvous>& rendezvous) {
  const base::Deadline deadline(options.group.timeout);
  HostTopology topology = discover_hosts(
      {.rank = options.rank, .size = options.size, .count_memory = options.count_memory},
      *rendezvous->store, deadline);
  const std::vector<std::int64_t> hosts = topology.host_of_rank;
  const std::int64_t num_hosts = topology.num_hosts();
  std::string obstacle = topology.obstacle;
  if (obstacle.find(std::strerror(EMFILE)) != std::string::npos) {  // gloo needs even more files
    fail_together(options.rank, base::Error(ErrorKind::comm, obstacle));
  }
  if (options.backend == "shm") {
    if (num_hosts > 1 && obstacle.empty()) {
      obstacle = fmt::format("ranks 0 and {} are on different hosts",
                             std::ranges::find(hosts, 1) - hosts.begin());
    }
    if (!obstacle.empty()) {
      fail_together(options.rank,
                    base::Error(ErrorKind::usage,
                                "--backend shm: " + obstacle + "; use --backend gloo or hier"));
    }
  }
  if (!obstacle.empty() || (num_hosts > 1 && num_hosts == options.size)) return nullptr;
  const auto shm = std::make_shared<HostGroups>(options.group.timeout, rendezvous,
                                                share_memory(std::move(topology), deadline));
  const auto allocate = [shm](std::int64_t bytes) {
    return allocate_shm(*shm->peer_memory(), bytes);
  };
  if (num_hosts == 1) {
    const auto connect = [shm](const GroupIdentity& identity) {
      return connect_shm(*shm, identity.key(), identity);
    };
    return rendezvous_world(options, rendezvous, {"shm", connect, allocate});
  }
  const HierGroups hier{.host_of_rank = hosts,
                        .is_ordered = options.group.reduction == Reduction::ordered,
                        .shm = shm,
                        .gloo = std::make_shared<GlooGroups>(options, rendezvous)};
  const auto connect = [hier](const GroupIdentity& identity) {
    return connect_hier(hier, identity);
  };
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

/// Creates the world of a backend plugin.
///
/// Throws: Error{usage} naming the file that cannot be loaded, why, and what to do.
std::shared_ptr<World> create_plugin_world(const std::string& name, const WorldOptions& options) {
  using Entry = BackendPlugin& (*)();
  const base::PluginFile file = base::open_plugin(name, "dtrain_backend_plugin");
  if (file.entry == nullptr) {
    base::fail(ErrorKind::usage,
               "--backend {}: cannot load {}: {}; build it with scripts/build.sh dtrain_{} (needs "
               "Debian's libopenmpi-dev, and libopenmpi3 to run), or use --backend gloo",
               name, file.path.empty() ? "libdtrain_" + name + ".so" : file.path, file.obstacle,
               name);
  }
  BackendPlugin& plugin = reinterpret_cast<Entry>(file.entry)();
  if (plugin.interface() != kBackendInterface) {
    base::fail(ErrorKind::usage,
               "--backend {}: {} belongs to another version of dtrain (interface {}, expected {}); "
               "install both from the same build",
               name, file.path, plugin.interface(), kBackendInterface);
  }
  return plugin.create_world(options);
}

}  // namespace

std::shared_ptr<World> create_world(const WorldOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    base::fail(ErrorKind::usage,
               "rank {} is outside a world of size {}; RANK must be from 0 to WORLD_SIZE - 1",
               options.rank, options.size);
  }
  const bool alone = options.size == 1;
  const std::string& backend = options.backend;
  if (backend == "none" || (backend == "auto" && alone)) {
    if (!alone) {
      base::fail(ErrorKind::usage,
                 "machine.backend none supports one rank, but {} were started; use auto",
                 options.size);
    }
    return std::make_shared<CpuWorld>(0, 1, options.group, CpuBackend{.name = "local"});
  }
  if (backend == "mpi") return create_plugin_world(backend, options);
  if (backend == "gloo" || backend == "shm" || backend == "hier" || backend == "auto") {
    // Silences c10d's warnings with stack traces for errors that dtrain reports in one line. Set
    // once, because all threads share LibTorch's flag.
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
    const auto rendezvous = run_rendezvous(options);
    const auto sharing =
        backend == "gloo" ? nullptr : create_shared_memory_world(options, rendezvous);
    return sharing ? sharing : create_gloo_world(options, rendezvous);
  }
  base::fail(ErrorKind::usage, "machine.backend is '{}'; choose auto, none, shm, gloo, hier or mpi",
             backend);
}

std::int64_t group_memory(std::string_view backend, const PlannedGroup& group) {
  const GroupLoad& load = group.load;
  if (load.size == 1) return 0;  // nothing is sent
  if (backend == "gloo") {
    return gloo_transport_bytes({.size = load.size, .reduced = group.added_over_gloo()});
  }
  if (backend == "hier") return hier_group_memory(group);
  if (backend == "mpi") return 2 * staging_bytes(load.size);  // of MpiTransport
  return backend == "shm" || backend == "auto" ? shm_group_memory(group) : 0;
}

}  // namespace dtrain::comm
