#include "dtrain/comm/local/local_world.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/comm/cpu_world.h"
#include "dtrain/comm/internal/host/shm_context.h"
#include "dtrain/comm/internal/shm/shm_transport.h"

namespace dtrain::comm {
namespace {

/// PeerMemory of threads, which share one address space.
class ThreadPeerMemory final : public PeerMemory {
 public:
  explicit ThreadPeerMemory(std::int64_t num_ranks) : num_ranks_(num_ranks) {}

  [[nodiscard]] std::int64_t num_ranks() const override { return num_ranks_; }
  [[nodiscard]] std::uintptr_t base(std::int64_t) const override { return 0; }
  [[nodiscard]] bool reachable(const std::byte*, std::int64_t) const override { return true; }
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    const at::Tensor tensor = at::zeros({bytes}, at::kByte);  // LibTorch counts it
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), [tensor](std::byte*) {}};
  }
  [[nodiscard]] bool has_exited(std::int64_t) const override { return false; }

 private:
  std::int64_t num_ranks_;
};

/// Allocates a control block in private memory.
std::shared_ptr<ControlBlock> make_block(std::int64_t size) {
  const at::Tensor memory = at::zeros({ControlBlock::bytes_for(size)}, at::kByte);
  auto* block = static_cast<ControlBlock*>(memory.data_ptr());
  block->size = size;
  return {block, [memory](ControlBlock*) {}};
}

/// A job whose ranks are threads: its groups, and the failure that ends them. Threads: any.
class LocalJob {
 public:
  explicit LocalJob(std::int64_t size) : peer_memory_(std::make_shared<ThreadPeerMemory>(size)) {}

  /// Connects a group; the first rank to call it creates the control block.
  std::unique_ptr<Transport> connect(const GroupIdentity& identity) {
    const std::lock_guard lock(mutex_);
    Group& group = groups_[identity.key()];
    if (!group.block) {
      group = {.block = make_block(std::ssize(identity.world_ranks)),
               .ranks = identity.world_ranks};
      if (error_) group.block->close(-1, -1, reason_);
    }
    DTRAIN_CHECK(group.ranks == identity.world_ranks, "ranks split into different groups");
    return std::make_unique<ShmTransport>(
        GroupMembership{
            .block = group.block, .rank = identity.rank, .world_ranks = identity.world_ranks},
        peer_memory_);
  }

  /// Closes all groups because of the exception that `rank` is handling; call it inside a catch
  /// block. The other ranks then fail. A consequence may be reported before its cause, but is
  /// recognised as an Error{comm}.
  void fail(std::int64_t rank) {
    std::string reason = fmt::format("rank {} failed", rank);
    bool is_cause = true;
    try {
      throw;
    } catch (const base::Error& caught) {
      reason += fmt::format(": {}", caught.what());
      is_cause = caught.kind() != base::ErrorKind::comm;
    } catch (const std::exception& caught) {
      reason += fmt::format(": {}", caught.what());
    } catch (...) {  // no message
    }
    const std::lock_guard lock(mutex_);
    if (!error_) {
      reason_ = reason;
      for (auto& [key, group] : groups_) group.block->close(-1, -1, reason);
    }
    if (error_ && (is_cause_ || !is_cause)) return;
    error_ = std::current_exception();
    is_cause_ = is_cause;
  }

  /// Rethrows the failure, if there was one.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Group {
    std::shared_ptr<ControlBlock> block;
    std::vector<std::int64_t> ranks;
  };

  const std::shared_ptr<ThreadPeerMemory> peer_memory_;
  std::mutex mutex_;
  std::map<std::string, Group> groups_;
  std::string reason_;  // of the first failure
  std::exception_ptr error_;
  bool is_cause_ = false;
};

/// Transport to simulated peers (make_silent_world).
class SilentTransport final : public Transport {
 public:
  explicit SilentTransport(std::int64_t rank) : rank_(rank) {}

  std::int64_t run(const Operation& operation, const base::Deadline&) override {
    return std::visit([this](const auto& call) { return execute(call); }, operation);
  }
  void close(const std::string&) noexcept override {}

 private:
  std::int64_t execute(const AllReduce& call) const { return size_in_bytes(call.tensor); }
  std::int64_t execute(const ReduceScatter& call) const {
    const std::int64_t bytes = size_in_bytes(call.output);
    const std::byte* own = bytes_of(call.input) + rank_ * bytes;
    if (own != bytes_of(call.output)) std::copy_n(own, bytes, bytes_of(call.output));
    return size_in_bytes(call.input) - bytes;
  }
  std::int64_t execute(const AllGather& call) const {
    const std::int64_t bytes = size_in_bytes(call.input);
    for (std::int64_t rank = 0; rank < call.output.ranks(); ++rank) {
      const std::span<std::byte> part = call.output.part(rank);
      const auto count = std::min(static_cast<std::size_t>(bytes), part.size());
      if (part.data() != bytes_of(call.input)) {
        std::copy_n(bytes_of(call.input), count, part.data());
      }
    }
    return bytes * (call.output.ranks() - 1);
  }
  std::int64_t execute(const AllToAll& call) const {
    const auto own = call.input.part(rank_);
    std::ranges::copy(own, call.output.part(rank_).data());
    return size_in_bytes(call.input.tensor) - std::ssize(own);
  }
  std::int64_t execute(const Broadcast& call) const {
    return call.root == rank_ ? size_in_bytes(call.tensor) : 0;
  }
  std::int64_t execute(const Send& call) const { return size_in_bytes(call.tensor); }
  std::int64_t execute(const Recv& call) const {
    std::fill_n(bytes_of(call.tensor), size_in_bytes(call.tensor), std::byte{0});
    return 0;
  }
  std::int64_t execute(const Barrier&) const { return 0; }

  std::int64_t rank_;
};

}  // namespace

void run_local_ranks(std::int64_t size, const GroupOptions& options,
                     const std::function<void(const std::shared_ptr<World>&)>& body) {
  DTRAIN_CHECK(size >= 1);
  const auto job = std::make_shared<LocalJob>(size);
  const auto connect = [job](const GroupIdentity& identity) { return job->connect(identity); };
  {
    std::vector<std::jthread> threads;  // joined at the end of this block
    for (std::int64_t rank = 0; rank < size; ++rank) {
      try {
        threads.emplace_back([&, rank] {
          std::shared_ptr<World> world;  // destroyed after fail() has told the others why
          try {
            world = std::make_shared<CpuWorld>(rank, size, options,
                                               CpuBackend{.name = "local", .connect = connect});
            body(world);
          } catch (...) {
            job->fail(rank);
          }
        });
      } catch (...) {  // the thread did not start: the others must not wait for it
        job->fail(rank);
        break;
      }
    }
  }
  job->rethrow();
}

std::shared_ptr<World> make_silent_world(std::int64_t size, const GroupOptions& options) {
  const auto connect = [](const GroupIdentity& identity) {
    return std::make_unique<SilentTransport>(identity.rank);
  };
  return std::make_shared<CpuWorld>(0, size, options,
                                    CpuBackend{.name = "silent", .connect = connect});
}

}  // namespace dtrain::comm
