// Seats the ranks of a host that form a group around its control block. Private to comm.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/host/meeting.h"
#include "dtrain/comm/host/process_neighbours.h"
#include "dtrain/comm/rendezvous/rendezvous.h"

namespace dtrain::comm {

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
