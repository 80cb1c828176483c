// Processes of one host that map each other's memory, and the groups that they form.
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
#include "dtrain/comm/internal/host/introduction.h"
#include "dtrain/comm/internal/host/meeting.h"
#include "dtrain/comm/internal/host/segment.h"
#include "dtrain/comm/internal/rendezvous/rendezvous.h"

namespace dtrain::comm {

/// Each rank of a host locks its own byte of a file that all of them have open; the system unlocks
/// it when the process ends, however it ends. So a rank needs one descriptor for any number of
/// others, and nobody without that file can pretend to be one.
///
/// Threads: any.
class Roster {
 public:
  /// `file`: the only descriptor of it that this process closes meanwhile, since that unlocks too.
  explicit Roster(base::Descriptor file) : file_(std::move(file)) {}

  /// Throws: Error{comm} with the system's reason.
  void enter(std::int64_t rank);
  /// Returns whether that rank has entered and lives. Ranks of the own process count as absent.
  [[nodiscard]] bool has(std::int64_t rank) const;

 private:
  base::Descriptor file_;
};

/// Processes that map each other's segments; ranks on other hosts have no memory here.
class ProcessNeighbours final : public Neighbours {
 public:
  /// Meets the ranks of this host. Others may ask for a rank when all have returned from this.
  ///
  /// Collective, Throws: as exchange_segments.
  ProcessNeighbours(HostMember self, std::shared_ptr<Segment> segment,
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
  [[nodiscard]] bool is_gone(std::int64_t rank) const override {
    return !is_own(rank) && !roster_->has(rank);
  }

 private:
  [[nodiscard]] bool is_own(std::int64_t rank) const { return rank == own_rank_; }

  std::int64_t own_rank_;
  std::int64_t num_ranks_;
  std::shared_ptr<Segment> segment_;
  std::unordered_map<std::int64_t, std::unique_ptr<Mapping>> mappings_;  // the others'
  std::optional<Roster> roster_;  // in the file of the host's first rank
};

/// A group to be made, as one of its members knows it.
struct GroupPlan {
  std::string key;                        ///< the group's in the store
  std::string name;                       ///< for errors
  std::int64_t rank = 0;                  ///< within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order
};

/// Threads: one caller.
class HostGroups {
 public:
  HostGroups(std::chrono::milliseconds timeout, std::shared_ptr<Rendezvous> rendezvous,
             std::shared_ptr<ProcessNeighbours> neighbours)
      : timeout_(timeout), rendezvous_(std::move(rendezvous)), neighbours_(std::move(neighbours)) {}

  [[nodiscard]] const std::shared_ptr<ProcessNeighbours>& neighbours() const { return neighbours_; }

  /// Collective: the group, which has several members.
  /// Throws:     Error{comm}, Error{memory}, Error{timeout} naming who did not come.
  [[nodiscard]] Seat seat(const GroupPlan& plan);

 private:
  /// A control block lies in the segment of its group's first member.
  struct OwnBlock {
    ControlBlock* block = nullptr;
    Segment::Extent extent;
  };

  [[nodiscard]] ControlBlock* block_at(const std::string& note, const GroupPlan& plan);
  [[nodiscard]] std::int64_t make_block(std::int64_t size);

  std::chrono::milliseconds timeout_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<ProcessNeighbours> neighbours_;
  std::vector<OwnBlock> own_blocks_;  // of groups that may still live; the last ones stay
};

}  // namespace dtrain::comm
