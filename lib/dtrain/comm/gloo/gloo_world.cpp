#include "dtrain/comm/gloo/gloo_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dtrain/base/error.h"
#include "dtrain/comm/gloo/gloo_transport.h"
#include "dtrain/comm/mapped_memory.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

namespace {

using c10d::ProcessGroupGloo;

class GlooWorld final : public World {
 public:
  GlooWorld(const WorldOptions& options, const Rendezvous& rendezvous)
      : options_(options),
        rendezvous_(rendezvous),
        device_(ProcessGroupGloo::createDeviceForHostname(rendezvous_.own_address)) {}

  [[nodiscard]] std::int64_t rank() const override { return options_.rank; }
  [[nodiscard]] std::int64_t size() const override { return options_.size; }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] std::string_view backend() const override { return "gloo"; }

  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return mapped_memory(bytes, options_.count_memory);
  }

  [[nodiscard]] std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                    std::string_view name) override {
    // Numbered, since a store's keys must not be used twice.
    const std::string key = fmt::format("group {} '{}'", splits_++, name);
    return make_queued_group(ranks, name, rank(), options_.group,
                             [&](const GroupIdentity& identity) { return connect(key, identity); });
  }

 private:
  std::unique_ptr<Transport> connect(const std::string& key, const GroupIdentity& identity) {
    const Deadline deadline(options_.group.timeout);
    meet_members(*rendezvous_.store, key, rank(), identity.world_ranks, deadline);
    const auto settings = ProcessGroupGloo::Options::create(deadline.remaining());
    settings->devices = {device_};
    settings->threads = 1;  // for gloo's own all-reduce, of which one runs at a time
    try {
      return std::make_unique<GlooTransport>(
          c10::make_intrusive<ProcessGroupGloo>(
              c10::make_intrusive<c10d::PrefixStore>(key, rendezvous_.store),
              static_cast<int>(identity.rank), static_cast<int>(identity.world_ranks.size()),
              settings),
          options_.group.reduction);
    } catch (const std::exception& caught) {
      const std::string_view text = caught.what();
      base::fail(base::ErrorKind::comm, "rank {} cannot connect to the others of {} from {}: {}",
                 rank(), key, rendezvous_.own_address, text.substr(0, text.find('\n')));
    }
  }

  WorldOptions options_;
  Rendezvous rendezvous_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::int64_t splits_ = 0;  // the same on every rank, since split is collective
};

}  // namespace

std::shared_ptr<World> create_gloo_world(const WorldOptions& options,
                                         const Rendezvous& rendezvous) {
  return std::make_shared<GlooWorld>(options, rendezvous);
}

}  // namespace dtrain::comm
