// Makes the World that a job was launched for; its backend may come in a plugin.
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

/// A rank's knowledge of its job before it has met the others.
struct WorldOptions {
  /// auto | none | shm | gloo | hier; auto: none for one rank, else as hier; hier: shm where all
  /// ranks are on one host, and within hosts of several ranks; gloo across, or where ranks cannot
  /// share memory; mpi: the plugin libdtrain_mpi.so, for ranks of mpirun
  std::string backend = "auto";
  std::int64_t rank = 0;
  std::int64_t size = 1;
  std::string master_addr = "127.0.0.1";  ///< where rank 0 serves the store
  std::int64_t master_port = 0;
  base::StoreSockets store = {};  ///< dtrun's ways to the store
  /// Network interfaces, separated by commas: gloo listens at the first that this host has. Empty:
  /// at the one through which it reaches rank 0.
  std::string interface = {};
  std::string interface_source = "--interface";  ///< what named them, for messages
  bool is_one_host = true;      ///< false: ranks are on several hosts, or nobody knows
  std::string token = {};       ///< the job's secret, for TCP; empty: none
  std::string token_file = {};  ///< or a file that holds it
  /// Under torchrun, whose store is at master_addr:master_port: the key in it under which rank 0
  /// says where it listens instead. Empty: rank 0 listens at master_port.
  std::string agent_store_key = {};
  bool tells_of_waiting = true;     ///< false: other ranks of this host say for whom all wait
  std::string waiting_advice = {};  ///< for somebody who waits in vain; empty: none
  GroupOptions group = {};
  /// Receives the bytes by which the memory grows (or shrinks, if negative) that World::allocate
  /// takes from elsewhere than LibTorch's CPU allocator. From any thread.
  std::function<void(std::int64_t)> count_memory = {};
};

/// Meets the other ranks.
///
/// Collective: all ranks of the job.
/// Throws:     Error{usage} for an unknown backend, for ranks that were told different world sizes,
///             for two processes with one rank, for shm among several hosts, and where the ranks'
///             secrets differ or ranks on several machines have none; Error{timeout} naming the
///             address when the store does not answer, or the ranks that did not come; Error{comm}
///             naming an address where something else answers, or a rank that has gone.
[[nodiscard]] std::shared_ptr<World> create_world(const WorldOptions& options);

/// A group before it is made.
struct PlannedGroup {
  GroupLoad load = {};
  std::vector<std::int64_t> host_of_rank = {};  ///< by rank of the group; empty: one host
  std::int64_t gathered = 0;     ///< bytes of the largest tensor that is gathered, or scattered
  bool exchanges = false;        ///< has calls of all_to_all
  bool reduces_16_bits = false;  ///< the tensors that are reduced are of 16 bits
  bool is_ordered = true;        ///< Reduction::ordered

  /// The largest tensor that dtrain adds up over gloo's messages: all_reduce of Reduction::fast is
  /// left to gloo itself.
  [[nodiscard]] std::int64_t added_over_gloo() const {
    return is_ordered || gathered > 0 ? load.reduced : 0;
  }
};

/// Returns the bytes that a rank's part of a group takes, beside the tensors that are communicated;
/// they count as tensor memory. For "auto" they are shm's, which it becomes where it can.
[[nodiscard]] std::int64_t group_memory(std::string_view backend, const PlannedGroup& group);

/// The interface between libdtrain.so and a plugin of a backend; changes with WorldOptions, World and
/// Transport.
inline constexpr int kBackendInterface = 2;

/// Implemented by a shared object libdtrain_NAME.so, which gives its only BackendPlugin through
/// dtrain_backend_plugin().
///
/// Threads: any.
class BackendPlugin {
 public:
  virtual ~BackendPlugin() = default;

  /// kBackendInterface as the plugin was built with it.
  [[nodiscard]] virtual int interface() const = 0;
  /// As comm::create_world.
  [[nodiscard]] virtual std::shared_ptr<World> create_world(const WorldOptions& options) = 0;
};

}  // namespace dtrain::comm

/// The entry of a plugin.
extern "C" dtrain::comm::BackendPlugin& dtrain_backend_plugin();
