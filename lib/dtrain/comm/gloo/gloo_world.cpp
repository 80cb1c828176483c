#include "dtrain/comm/gloo/gloo_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/open_files.h"
#include "dtrain/base/printable.h"
#include "dtrain/comm/gloo/gloo_store.h"
#include "dtrain/comm/gloo/gloo_transport.h"
#include "dtrain/comm/mapped_memory.h"
#include "dtrain/comm/met_world.h"
#include "dtrain/comm/queued_group.h"

namespace dtrain::comm {

namespace {

using c10d::ProcessGroupGloo;

/// gloo ends the process when its thread meets the limit on open files, so it must not meet it: a
/// group has a connection to each member, and for a moment two.
void require_files(std::int64_t group_size) {
  constexpr std::int64_t kOwn = 8;  // its loop and its listener
  if (base::can_open_files(2 * group_size + kOwn)) return;
  base::fail(base::ErrorKind::comm, "gloo needs {} more files to connect {} ranks: {}",
             2 * group_size + kOwn, group_size, std::strerror(EMFILE));
}

std::shared_ptr<::gloo::transport::Device> make_device(const std::string& address) {
  require_files(2);
  try {
    return ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& caught) {
    const std::string_view text = caught.what();
    base::fail(base::ErrorKind::comm, "gloo cannot listen at {}: {}", address,
               base::printable(text.substr(0, text.find('\n'))));
  }
}

class GlooWorld final : public MetWorld {
 public:
  GlooWorld(const WorldOptions& options, std::shared_ptr<Rendezvous> rendezvous)
      : MetWorld(std::move(rendezvous)), options_(options), device_(make_device(own_address())) {}

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
    require_files(static_cast<std::int64_t>(identity.world_ranks.size()));
    meet_members(store(), key, rank(), identity.world_ranks, deadline);
    const auto settings = ProcessGroupGloo::Options::create(deadline.remaining());
    settings->devices = {device_};
    settings->threads = 1;  // for gloo's own all-reduce, of which one runs at a time
    try {
      return std::make_unique<GlooTransport>(
          c10::make_intrusive<ProcessGroupGloo>(
              c10::make_intrusive<GlooStore>(store(), key + "/gloo/", deadline.remaining()),
              static_cast<int>(identity.rank), static_cast<int>(identity.world_ranks.size()),
              settings),
          options_.group.reduction);
    } catch (const base::Error&) {
      throw;
    } catch (const std::exception& caught) {
      const std::string_view text = caught.what();
      base::fail(base::ErrorKind::comm, "rank {} cannot connect to the others of {} from {}: {}",
                 rank(), key, own_address(), base::printable(text.substr(0, text.find('\n'))));
    }
  }

  WorldOptions options_;
  std::shared_ptr<::gloo::transport::Device> device_;
  std::int64_t splits_ = 0;  // the same on every rank, since split is collective
};

}  // namespace

std::shared_ptr<World> create_gloo_world(const WorldOptions& options,
                                         std::shared_ptr<Rendezvous> rendezvous) {
  return std::make_shared<GlooWorld>(options, std::move(rendezvous));
}

}  // namespace dtrain::comm
