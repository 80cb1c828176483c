#include "dtrain/comm/gloo/gloo_world.h"

#include <utility>

#include "dtrain/comm/gloo/gloo_groups.h"
#include "dtrain/comm/mapped_memory.h"
#include "dtrain/comm/met_world.h"

namespace dtrain::comm {

namespace {

class GlooWorld final : public MetWorld {
 public:
  GlooWorld(const WorldOptions& options, const std::shared_ptr<Rendezvous>& rendezvous)
      : MetWorld(options, rendezvous), groups_(options, rendezvous) {
    make_control();
  }

  [[nodiscard]] std::string_view backend() const override { return "gloo"; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return mapped_memory(bytes, options().count_memory);
  }

 private:
  std::unique_ptr<Transport> connect(const std::string& key,
                                     const GroupIdentity& identity) override {
    return groups_.connect(key, identity);
  }

  GlooGroups groups_;
};

}  // namespace

std::shared_ptr<World> create_gloo_world(const WorldOptions& options,
                                         std::shared_ptr<Rendezvous> rendezvous) {
  return std::make_shared<GlooWorld>(options, std::move(rendezvous));
}

}  // namespace dtrain::comm
