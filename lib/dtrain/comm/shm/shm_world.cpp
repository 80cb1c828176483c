#include "dtrain/comm/shm/shm_world.h"

#include <utility>

#include "dtrain/comm/met_world.h"
#include "dtrain/comm/shm/shm_groups.h"

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

}  // namespace dtrain::comm
