// Makes groups of ranks of several hosts: shared memory within a host, gloo across. Private to comm.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/comm/gloo/gloo_groups.h"
#include "dtrain/comm/shm/shm_groups.h"

namespace dtrain::comm {

class HierGroups {
 public:
  /// Collective: all ranks of the job.
  /// Throws:     as GlooGroups.
  HierGroups(const WorldOptions& options, const std::shared_ptr<Rendezvous>& rendezvous,
             std::shared_ptr<ShmGroups> shm, std::vector<std::int64_t> host_of_rank)
      : host_of_rank_(std::move(host_of_rank)),
        is_ordered_(options.group.reduction == Reduction::ordered),
        shm_(std::move(shm)),
        gloo_(options, rendezvous) {}

  /// The transport of a group of several.
  ///
  /// Collective: the group.
  [[nodiscard]] std::unique_ptr<Transport> connect(const GroupIdentity& identity);

 private:
  std::vector<std::int64_t> host_of_rank_;
  bool is_ordered_;
  std::shared_ptr<ShmGroups> shm_;
  GlooGroups gloo_;
};

/// group_memory of a group, which may lie on one host or on several.
[[nodiscard]] std::int64_t hier_group_memory(const PlannedGroup& group);

}  // namespace dtrain::comm
