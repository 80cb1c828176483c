// Makes groups of ranks of one host that share memory. Private to comm.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dtrain/comm/create_world.h"
#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/rendezvous/rendezvous.h"
#include "dtrain/comm/shm/control_block.h"
#include "dtrain/comm/shm/process_neighbours.h"

namespace dtrain::comm {

class ShmGroups {
 public:
  ShmGroups(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous,
            std::shared_ptr<ProcessNeighbours> neighbours)
      : deadline_after_(options.group.timeout),
        rendezvous_(std::move(rendezvous)),
        neighbours_(std::move(neighbours)) {}

  /// The transport of a group of several, whose keys in the store begin with `key`.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const std::string& key,
                                                   const GroupIdentity& identity);
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) { return neighbours_->allocate(bytes); }

 private:
  /// A control block lies in the segment of its group's first member.
  struct OwnBlock {
    ControlBlock* block = nullptr;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  [[nodiscard]] ControlBlock* block_at(const std::string& note, const GroupIdentity& identity);
  [[nodiscard]] std::int64_t make_block(std::int64_t size);

  std::chrono::milliseconds deadline_after_;
  std::shared_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<ProcessNeighbours> neighbours_;
  std::vector<OwnBlock> own_blocks_;  // of groups that may still live; the last ones stay
};

}  // namespace dtrain::comm
