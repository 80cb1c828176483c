#include "cuda/nccl_world.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cuda/check.h"
#include "cuda/nccl_group.h"
#include "cuda/peer_watch.h"
#include "cuda/watchdog.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::cuda {
namespace {

using base::ErrorKind;

// What NCCL tells a GPU by: the device, and the machine as NCCL_HOSTID names it.
std::string identity_of_gpu(c10::Device device) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, device.index()), "describing a GPU");
  std::string text;
  for (const char byte : found.uuid.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  const char* host = std::getenv("NCCL_HOSTID");  // a setting of NCCL's, not of ours
  return text + (host != nullptr ? fmt::format(" of {}", host) : "");
}

// Collective.
void refuse_shared_gpus(comm::World& host, c10::Device device) {
  std::map<std::string, std::int64_t> owners;
  std::int64_t rank = 0;
  for (const std::string& gpu : comm::exchange_texts(host.control(), identity_of_gpu(device))) {
    const auto [owner, is_first] = owners.emplace(gpu, rank);
    if (!is_first) {
      base::fail(ErrorKind::device,
                 "ranks {} and {} are both on GPU {}: start as many ranks as there are GPUs, or, "
                 "for tests alone, give each rank an NCCL_HOSTID of its own",
                 owner->second, rank, gpu);
    }
    ++rank;
  }
}

class NcclWorld final : public comm::World {
 public:
  NcclWorld(std::shared_ptr<comm::World> host, c10::Device device,
            const comm::GroupOptions& options)
      : host_(std::move(host)),
        device_(device),
        options_(options),
        peer_group_(host_->split(comm::ranks_below(host_->size()), "peers of the device")),
        watchdog_(std::make_shared<Watchdog>(
            device, [peers = peer_group_](const std::string& reason) { peers->abort(reason); })) {
    if (size() == 1) return;
    memory_ = std::make_shared<RegisteredMemory>(device_);
    refuse_shared_gpus(*host_, device_);
    peers_.emplace(peer_group_, options_.timeout,
                   [watchdog = watchdog_](std::exception_ptr error) { watchdog->fail_all(error); });
    all_ = connected("all ranks", [&](const comm::Deadline& deadline) {
      auto all = std::make_shared<Communicator>();
      all->join(exchanged_id(), {static_cast<int>(rank()), static_cast<int>(size())}, deadline);
      return all;
    });
  }

  [[nodiscard]] std::int64_t rank() const override { return host_->rank(); }
  [[nodiscard]] std::int64_t size() const override { return host_->size(); }
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  void end_meeting() override { host_->end_meeting(); }
  [[nodiscard]] comm::ProcessGroup& control() override { return host_->control(); }

  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    try {
      return memory_ ? memory_->allocate(bytes) : at::zeros({bytes}, options(at::kByte));
    } catch (const c10::OutOfMemoryError& caught) {
      base::fail(ErrorKind::memory, "{} has no room for {} bytes: {}", device_.str(), bytes,
                 caught.what_without_backtrace());
    }
  }

  [[nodiscard]] std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                          std::string_view name) override {
    std::shared_ptr<comm::ProcessGroup> host = host_->split(ranks, name);
    const auto own = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    std::shared_ptr<Communicator> communicator;
    if (ranks.size() > 1) {
      communicator = connected(name, [&](const comm::Deadline& deadline) {
        return all_->split(host == nullptr ? NCCL_SPLIT_NOCOLOR : 0, static_cast<int>(own),
                           deadline);
      });
    }
    if (host == nullptr) return nullptr;
    comm::GroupIdentity identity{
        .name = std::string(name), .rank = own, .world_ranks = {ranks.begin(), ranks.end()}};
    auto state =
        std::make_shared<GroupState>(std::move(identity), options_, device_, std::move(host));
    return std::make_shared<NcclGroup>(std::move(state), std::move(communicator), memory_,
                                       watchdog_);
  }

 private:
  // Rank 0's id of a communicator, on every rank.
  ncclUniqueId exchanged_id() {
    ncclUniqueId id{};
    if (rank() == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
      base::fail(ErrorKind::comm, "NCCL cannot open a socket: {}", ncclGetLastError(nullptr));
    }
    const at::Tensor bytes = at::empty({NCCL_UNIQUE_ID_BYTES}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof(id));
    host_->control().broadcast(bytes, 0).wait_host();
    std::memcpy(&id, bytes.data_ptr(), sizeof(id));
    return id;
  }

  // What `connect` gives; its failure as an error that names the group.
  template <typename Connect>
  std::shared_ptr<Communicator> connected(std::string_view name, const Connect& connect) {
    try {
      return connect(comm::Deadline(options_.timeout));
    } catch (const NcclFailure& failure) {
      const bool is_late = failure.cause() == NcclFailure::Cause::no_answer;
      base::fail(is_late ? ErrorKind::timeout : ErrorKind::comm,
                 "rank {}, group '{}', connecting {} ranks: {}", rank(), name, size(),
                 failure.what());
    }
  }

  std::shared_ptr<comm::World> host_;
  c10::Device device_;
  comm::GroupOptions options_;
  std::shared_ptr<comm::ProcessGroup> peer_group_;
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<RegisteredMemory> memory_;  // none in a world of one, as what follows
  std::shared_ptr<Communicator> all_;         // of which groups are split
  std::optional<PeerWatch> peers_;
};

}  // namespace

std::shared_ptr<comm::World> make_nccl_world(std::shared_ptr<comm::World> host, c10::Device device,
                                             const comm::GroupOptions& options) {
  return std::make_shared<NcclWorld>(std::move(host), device, options);
}

}  // namespace dtrain::cuda
