#include "dtrain/comm/shm/shm_world.h"

#include <algorithm>
#include <utility>

#include "dtrain/comm/met_world.h"
#include "dtrain/comm/shm/shm_groups.h"
#include "dtrain/comm/shm/shm_transport.h"
#include "dtrain/comm/slices.h"

namespace dtrain::comm {

namespace {

class ShmWorld final : public MetWorld {
 public:
  ShmWorld(const WorldOptions& options, const std::shared_ptr<Rendezvous>& rendezvous,
           std::shared_ptr<ProcessNeighbours> neighbours)
      : MetWorld(options, rendezvous), groups_(options, rendezvous, std::move(neighbours)) {
    make_control();
  }

  [[nodiscard]] std::string_view backend() const override { return "shm"; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override { return groups_.allocate(bytes); }

 private:
  std::unique_ptr<Transport> connect(const std::string& key,
                                     const GroupIdentity& identity) override {
    return groups_.connect(key, identity);
  }

  ShmGroups groups_;
};

}  // namespace

std::shared_ptr<World> create_shm_world(const WorldOptions& options,
                                        std::shared_ptr<Rendezvous> rendezvous,
                                        std::shared_ptr<ProcessNeighbours> neighbours) {
  return std::make_shared<ShmWorld>(options, std::move(rendezvous), std::move(neighbours));
}

// An all_to_all has a table in the staging area, whatever it sends.
std::int64_t shm_group_memory(const PlannedGroup& group) {
  GroupLoad load = group.load;
  if (group.exchanges) load.foreign = std::max(load.foreign, staging_bytes(load.size));
  return ShmTransport::bytes(load);
}

}  // namespace dtrain::comm
