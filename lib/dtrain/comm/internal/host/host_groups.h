// Creates shared-memory groups of processes on one host, and detects processes that have exited.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/comm/internal/host/segment.h"
#include "dtrain/comm/internal/host/segment_exchange.h"
#include "dtrain/comm/internal/host/shm_context.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// Detects exited processes by file locks: each rank locks its own byte of a shared file, and the
/// system unlocks it when the process ends, however it ends. A rank needs one descriptor for any
/// number of peers, and a process without the file cannot pose as a rank.
///
/// Threads: any.
class LivenessLocks {
 public:
  /// The process must not close another descriptor of `file`, which would release its locks.
  explicit LivenessLocks(base::Descriptor file) : file_(std::move(file)) {}

  /// Throws: Error{comm} with the system's reason.
  void lock(std::int64_t rank);
  /// Returns whether another process holds that rank's lock.
  [[nodiscard]] bool is_alive(std::int64_t rank) const;

 private:
  base::Descriptor file_;
};

/// PeerMemory of processes that map each other's segments. Only ranks of this host have memory.
class ProcessPeerMemory final : public PeerMemory {
 public:
  /// Exchanges segments with the ranks of this host.
  ///
  /// Collective, Throws: as exchange_segments.
  ProcessPeerMemory(HostMember self, std::shared_ptr<Segment> segment,
                    const base::Deadline& deadline);

  [[nodiscard]] Segment& segment() const { return *segment_; }
  [[nodiscard]] std::int64_t num_ranks() const override { return num_ranks_; }
  [[nodiscard]] std::uintptr_t base(std::int64_t rank) const override {
    const std::byte* data = is_own(rank) ? segment_->data() : mappings_.at(rank)->data();
    return reinterpret_cast<std::uintptr_t>(data);
  }
  [[nodiscard]] std::int64_t bytes(std::int64_t rank) const {
    return is_own(rank) ? segment_->bytes() : mappings_.at(rank)->bytes();
  }
  [[nodiscard]] bool reachable(const std::byte* data, std::int64_t bytes) const override {
    const auto begin = reinterpret_cast<std::uintptr_t>(segment_->data());
    const auto offset = reinterpret_cast<std::uintptr_t>(data) - begin;  // huge if below
    return offset < static_cast<std::uintptr_t>(segment_->bytes()) &&
           static_cast<std::uintptr_t>(bytes) <=
               static_cast<std::uintptr_t>(segment_->bytes()) - offset;
  }
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    return segment_->allocate(bytes);
  }
  [[nodiscard]] bool has_exited(std::int64_t rank) const override {
    return !is_own(rank) && !liveness_->is_alive(rank);
  }

 private:
  [[nodiscard]] bool is_own(std::int64_t rank) const { return rank == own_rank_; }

  std::int64_t own_rank_;
  std::int64_t num_ranks_;
  std::shared_ptr<Segment> segment_;
  std::unordered_map<std::int64_t, std::unique_ptr<Mapping>> mappings_;  // the others'
  std::optional<LivenessLocks> liveness_;  // in the segment file of the host's leader
};

/// Describes a group to be created, from one member's view.
struct GroupPlan {
  std::string key;                        ///< of the group in the store
  std::string name;                       ///< for errors
  std::int64_t rank = 0;                  ///< within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order
};

/// Creates shared-memory groups among the ranks of one host.
///
/// Threads: one caller.
class HostGroups {
 public:
  HostGroups(std::chrono::milliseconds timeout, std::shared_ptr<Rendezvous> rendezvous,
             std::shared_ptr<ProcessPeerMemory> peer_memory)
      : timeout_(timeout),
        rendezvous_(std::move(rendezvous)),
        peer_memory_(std::move(peer_memory)) {}

  [[nodiscard]] const std::shared_ptr<ProcessPeerMemory>& peer_memory() const {
    return peer_memory_;
  }

  /// Joins a group of several members.
  ///
  /// Collective: the group.
  /// Throws:     Error{comm}, Error{memory}, Error{timeout} naming the missing members.
  [[nodiscard]] GroupMembership join(const GroupPlan& plan);

 private:
  /// A control block in this rank's segment, for a group whose first member is this rank.
  struct OwnBlock {
    ControlBlock* block = nullptr;
    Segment::Extent extent;
  };

  [[nodiscard]] ControlBlock* block_at(const std::string& value, const GroupPlan& plan);
  [[nodiscard]] std::int64_t make_block(std::int64_t size);

  std::chrono::milliseconds timeout_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<ProcessPeerMemory> peer_memory_;
  std::vector<OwnBlock> own_blocks_;  // reused once every member has left the group
};

}  // namespace dtrain::comm
