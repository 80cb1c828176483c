#include "dtrain/parallel/engine/equal_copies.h"

#include <algorithm>
#include <vector>

namespace dtrain::parallel {
namespace {

// The groups that hold copies of a parameter, in the order in which they are made equal.
std::vector<comm::ProcessGroup*> holders_of(const EngineSetup& setup, param::ParameterId id) {
  const EngineGroups& groups = setup.groups;
  std::vector<comm::ProcessGroup*> holders;
  comm::ProcessGroup* replicas =
      groups.data.shards == nullptr ? &groups.data.all : groups.data.replicas;
  const bool is_cut = setup.model.parameters[static_cast<std::size_t>(id)].cut.has_value();
  if (replicas != nullptr) holders.push_back(replicas);
  if (groups.tensor != nullptr && !is_cut) holders.push_back(groups.tensor);
  for (const SharedParameters& shared : groups.shared) {
    if (std::find(shared.ids.begin(), shared.ids.end(), id) != shared.ids.end()) {
      holders.push_back(shared.stages);
    }
  }
  return holders;
}

}  // namespace

void make_copies_equal(const EngineSetup& setup, std::span<const param::Arena* const> arenas) {
  for (param::ParameterId id = 0; id < setup.layout.num_parameters(); ++id) {
    const param::ElementRange own = setup.layout.range_in(id, setup.shard());
    if (own.is_empty()) continue;
    for (comm::ProcessGroup* holders : holders_of(setup, id)) {
      for (const param::Arena* arena : arenas) {
        holders->broadcast(arena->slice(own), /*root=*/0).wait();
      }
    }
  }
}

}  // namespace dtrain::parallel
