#include "cuda/nccl/nccl_world.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.h"
#include "cuda/nccl/nccl_group.h"
#include "cuda/nccl/peer_heartbeat.h"
#include "cuda/nccl/watchdog.h"
#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

using base::ErrorKind;

// Makes NCCL treat ranks on one GPU, which it otherwise refuses, as ranks on different machines that
// are connected by network only. NCCL reads these variables when it first connects.
void override_nccl_hostid(std::int64_t rank) {
  constexpr int kReplaces = 1;
  ::setenv("NCCL_HOSTID", fmt::format("dtrain-rank-{}", rank).c_str(), kReplaces);
  ::setenv("NCCL_P2P_DISABLE", "1", kReplaces);
  ::setenv("NCCL_SHM_DISABLE", "1", kReplaces);
  ::setenv("NCCL_NET", "Socket", kReplaces);
}

using Ranks = std::vector<std::int64_t>;

class NcclWorld final : public comm::World {
 public:
  NcclWorld(std::shared_ptr<comm::World> host, c10::Device device,
            const comm::GroupOptions& options)
      : host_(std::move(host)),
        device_(device),
        options_(options),
        peer_group_(host_->split(comm::ranks_below(host_->size()), "peers of the device")),
        all_state_(std::make_shared<GroupState>(
            GroupConfig{.identity = {.name = "all ranks",
                                     .rank = host_->rank(),
                                     .world_ranks = comm::ranks_below(host_->size())},
                        .options = options,
                        .device = device},
            peer_group_)),
        watchdog_(std::make_shared<Watchdog>(device)),
        messages_(std::make_shared<MessageStreams>(device)) {
    if (size() == 1) return;
    watchdog_->add(all_state_);
    memory_ = std::make_shared<RegisteredMemory>(device_);
    peers_.emplace(peer_group_, options_.timeout,
                   [watchdog = watchdog_](std::exception_ptr error) { watchdog->fail_all(error); });
    all_ = connected("all ranks", [&](const base::Deadline& deadline) {
      auto all = std::make_shared<Communicator>();
      all_state_->add(all);  // from now on a peer's failure aborts the wait
      all->join(exchanged_id(), {static_cast<int>(rank()), static_cast<int>(size())}, deadline);
      return all;
    });
  }

  [[nodiscard]] std::int64_t rank() const override { return host_->rank(); }
  [[nodiscard]] std::int64_t size() const override { return host_->size(); }
  [[nodiscard]] c10::Device device() const override { return device_; }
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  void close_rendezvous() override { host_->close_rendezvous(); }
  [[nodiscard]] comm::ProcessGroup& control() override { return host_->control(); }

  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override {
    return memory_ ? memory_->allocate(bytes) : at::zeros({bytes}, options(at::kByte));
  }

  [[nodiscard]] std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                          std::string_view name) override {
    const Ranks line(ranks.begin(), ranks.end());
    return split_subgroups({&line, 1}, name, comm::GroupCalls::all);
  }

  [[nodiscard]] std::shared_ptr<comm::ProcessGroup> split_subgroups(
      std::span<const Ranks> lines, std::string_view name, comm::GroupCalls calls) override {
    std::shared_ptr<comm::ProcessGroup> host = host_->split_subgroups(lines, name, calls);
    std::shared_ptr<Communicator> communicator;
    if (calls == comm::GroupCalls::all) communicator = communicator_of(lines, name);
    if (host == nullptr) return nullptr;
    const Place own = *place_in(lines);
    GroupConfig config{
        .identity = {.name = std::string(name), .rank = own.index, .world_ranks = lines[own.line]},
        .options = options_,
        .device = device_};
    auto state = std::make_shared<GroupState>(std::move(config), std::move(host));
    return std::make_shared<NcclGroup>(std::move(state), std::move(communicator), memory_,
                                       watchdog_, messages_);
  }

 private:
  struct Place {
    std::size_t line;
    std::int64_t index;  // among the ranks of the line
  };

  // The position of this rank; empty if it is in none of the lines.
  [[nodiscard]] std::optional<Place> place_in(std::span<const Ranks> lines) const {
    for (std::size_t line = 0; line < lines.size(); ++line) {
      const auto found = std::ranges::find(lines[line], rank());
      if (found != lines[line].end()) return Place{line, found - lines[line].begin()};
    }
    return std::nullopt;
  }

  // Returns the communicator of this rank's line; null if it is alone or in none. The first group of
  // all ranks uses the world communicator; others are split from it, all lines in one call.
  std::shared_ptr<Communicator> communicator_of(std::span<const Ranks> lines,
                                                std::string_view name) {
    const auto is_alone = [](const Ranks& line) { return line.size() == 1; };
    if (std::ranges::all_of(lines, is_alone)) return nullptr;
    if (lines.front() == comm::ranks_below(size()) && !std::exchange(is_all_in_use_, true)) {
      return all_;
    }
    const auto own = place_in(lines);
    const bool has_peers = own && !is_alone(lines[own->line]);
    return connected(name, [&](const base::Deadline& deadline) {
      return all_->split(has_peers ? static_cast<int>(own->line) : NCCL_SPLIT_NOCOLOR,
                         has_peers ? static_cast<int>(own->index) : 0, deadline);
    });
  }

  // Broadcasts a communicator id from rank 0.
  ncclUniqueId exchanged_id() {
    ncclUniqueId id{};
    if (rank() == 0 && ncclGetUniqueId(&id) != ncclSuccess) {
      base::fail(ErrorKind::comm,
                 "NCCL cannot open a socket: {}; check --interface and NCCL_SOCKET_IFNAME",
                 ncclGetLastError(nullptr));
    }
    const at::Tensor bytes = at::empty({NCCL_UNIQUE_ID_BYTES}, at::kByte);
    std::memcpy(bytes.data_ptr(), &id, sizeof(id));
    host_->control().broadcast(bytes, 0).wait_host();
    std::memcpy(&id, bytes.data_ptr(), sizeof(id));
    return id;
  }

  // Runs `connect`, and turns its failure into an error that names the group.
  template <typename Connect>
  std::shared_ptr<Communicator> connected(std::string_view name, const Connect& connect) {
    try {
      return connect(base::Deadline(options_.timeout));
    } catch (const TransportFailure& failure) {
      all_state_->error().rethrow();  // the cause, if another thread aborted it
      const bool is_late = failure.cause() == TransportFailure::Cause::no_answer;
      base::fail(is_late ? ErrorKind::timeout : ErrorKind::comm,
                 "rank {}, group '{}', connecting its ranks: {}", rank(), name, failure.what());
    }
  }

  std::shared_ptr<comm::World> host_;
  c10::Device device_;
  comm::GroupOptions options_;
  std::shared_ptr<comm::ProcessGroup> peer_group_;
  std::shared_ptr<GroupState> all_state_;  // its failure also ends the heartbeats
  std::shared_ptr<Watchdog> watchdog_;
  std::shared_ptr<MessageStreams> messages_;
  std::shared_ptr<RegisteredMemory> memory_;  // null in a single-rank world, as the members below
  std::shared_ptr<Communicator> all_;         // groups are split from it
  bool is_all_in_use_ = false;                // by the first group of all ranks
  std::optional<PeerHeartbeat> peers_;
};

}  // namespace

std::shared_ptr<comm::World> make_nccl_world(std::shared_ptr<comm::World> host, c10::Device device,
                                             const comm::GroupOptions& options) {
  // Before this world has threads, which may read the environment.
  if (options.shares_devices && host->size() > 1) override_nccl_hostid(host->rank());
  return std::make_shared<NcclWorld>(std::move(host), device, options);
}

}  // namespace dtrain::cuda
