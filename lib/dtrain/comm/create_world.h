// Creates a job's World with the configured backend, which may be a plugin.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/rank_env.h"
#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// A rank's input to create_world().
struct WorldOptions {
  /// auto | none | shm | gloo | hier | mpi. auto: none for one rank, otherwise hier. hier: shm
  /// within hosts, gloo between hosts or if ranks cannot share memory. mpi: the plugin
  /// libdtrain_mpi.so, for ranks that mpirun started.
  std::string backend = "auto";
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::string master_addr = "127.0.0.1";  ///< where rank 0 serves the store
  std::int64_t master_port = 0;
  base::StoreSockets store = {};  ///< dtrun's sockets to the store
  /// Comma-separated network interfaces: gloo listens on the first that this host has. Empty: on
  /// the interface that routes to rank 0.
  std::string interface = {};
  std::string interface_source = "--interface";  ///< the setting that names them, for messages
  bool is_one_host = true;                       ///< false: ranks are, or may be, on several hosts
  std::string token = {};                        ///< the job's secret, for TCP; empty: none
  std::string token_file = {};                   ///< or a file that contains it
  /// Under torchrun, whose own store occupies master_addr:master_port: the key under which rank 0
  /// publishes its port there. Empty: rank 0 listens at master_port.
  std::string agent_store_key = {};
  bool reports_waiting = true;      ///< prints missing ranks; set on one rank per host
  std::string waiting_advice = {};  ///< appended to the first such line; empty: none
  GroupOptions group = {};
  /// Receives the growth in bytes (negative: shrinkage) of memory that World::allocate takes
  /// outside LibTorch's CPU allocator. Called from any thread.
  std::function<void(std::int64_t)> count_memory = {};
};

/// Performs the rendezvous with the other ranks, and creates the world.
///
/// Collective: all ranks of the job.
/// Throws:     Error{usage} for an unknown backend, different world sizes, two processes with one
///             rank, shm among several hosts, secrets that differ, or ranks on several machines
///             without a secret; Error{timeout} naming the address of a store that does not answer,
///             or the missing ranks; Error{comm} naming an address where another program answers,
///             or a rank that has exited.
[[nodiscard]] std::shared_ptr<World> create_world(const WorldOptions& options);

/// Describes a group before it is created, to predict its memory.
struct PlannedGroup {
  GroupLoad load = {};
  std::vector<std::int64_t> host_of_rank = {};  ///< by rank of the group; empty: one host
  std::int64_t gathered = 0;     ///< bytes of the largest tensor that is gathered or scattered
  bool exchanges = false;        ///< calls all_to_all
  bool reduces_16_bits = false;  ///< reduces tensors of 16-bit dtypes
  bool is_ordered = true;        ///< Reduction::ordered

  /// Bytes of the largest tensor that dtrain itself reduces over gloo messages. With
  /// Reduction::fast, gloo performs the all_reduce.
  [[nodiscard]] std::int64_t added_over_gloo() const {
    return is_ordered || gathered > 0 ? load.reduced : 0;
  }
};

/// Bytes that a group takes on one rank in addition to the communicated tensors; they count as
/// tensor memory. For "auto": the bytes of shm, its first choice.
[[nodiscard]] std::int64_t group_memory(std::string_view backend, const PlannedGroup& group);

/// Version of the interface between libdtrain.so and a backend plugin; changes with WorldOptions,
/// World and Transport.
inline constexpr int kBackendInterface = 2;

/// Implemented by a shared library libdtrain_NAME.so, which returns its only BackendPlugin from
/// dtrain_backend_plugin().
///
/// Threads: any.
class BackendPlugin {
 public:
  virtual ~BackendPlugin() = default;

  /// The kBackendInterface with which the plugin was built.
  [[nodiscard]] virtual int interface() const = 0;
  /// As comm::create_world.
  [[nodiscard]] virtual std::shared_ptr<World> create_world(const WorldOptions& options) = 0;
};

}  // namespace dtrain::comm

/// Entry point of a plugin.
extern "C" dtrain::comm::BackendPlugin& dtrain_backend_plugin();
