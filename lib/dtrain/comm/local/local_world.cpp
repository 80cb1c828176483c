#include "dtrain/comm/local/local_world.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>

#include "dtrain/base/check.h"
#include "dtrain/comm/cpu_world.h"
#include "dtrain/comm/host/neighbours.h"
#include "dtrain/comm/shm/shm_transport.h"

namespace dtrain::comm {

namespace {

/// Threads of one process see all memory at the same addresses.
class ThreadNeighbours final : public Neighbours {
 public:
  explicit ThreadNeighbours(std::int64_t num_ranks) : num_ranks_(num_ranks) {}

  [[nodiscard]] std::int64_t num_ranks() const override { return num_ranks_; }
  [[nodiscard]] std::uintptr_t base(std::int64_t) const override { return 0; }
  [[nodiscard]] bool reachable(const std::byte*, std::int64_t) const override { return true; }
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::int64_t bytes) override {
    const at::Tensor tensor = at::zeros({bytes}, at::kByte);  // LibTorch counts it
    return {static_cast<std::byte*>(tensor.mutable_data_ptr()), [tensor](std::byte*) {}};
  }
  [[nodiscard]] bool is_gone(std::int64_t) const override { return false; }

 private:
  std::int64_t num_ranks_;
};

/// A control block in this process's own memory.
std::shared_ptr<ControlBlock> make_block(std::int64_t size) {
  const at::Tensor memory = at::zeros({ControlBlock::bytes_for(size)}, at::kByte);
  auto* block = static_cast<ControlBlock*>(memory.data_ptr());
  block->size = size;
  return {block, [memory](ControlBlock*) {}};
}

/// The groups of one job of threads. Threads: any.
class LocalJob {
 public:
  LocalJob(std::int64_t size, const GroupOptions& options)
      : neighbours_(std::make_shared<ThreadNeighbours>(size)), options_(options) {}

  [[nodiscard]] std::int64_t size() const { return neighbours_->num_ranks(); }
  [[nodiscard]] const GroupOptions& options() const { return options_; }
  [[nodiscard]] const std::shared_ptr<ThreadNeighbours>& neighbours() const { return neighbours_; }

  /// The control block of a group, made by whichever rank comes first.
  std::shared_ptr<ControlBlock> block(const GroupIdentity& identity) {
    const std::lock_guard lock(mutex_);
    Group& group = groups_[identity.key()];
    if (!group.block) {
      group = {.block = make_block(std::ssize(identity.world_ranks)),
               .ranks = identity.world_ranks};
      if (aborted_) group.block->close(-1, -1, reason_);
    }
    DTRAIN_CHECK(group.ranks == identity.world_ranks, "ranks split into different groups");
    return group.block;
  }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    reason_ = reason;
    for (auto& [key, group] : groups_) group.block->close(-1, -1, reason);
  }

 private:
  struct Group {
    std::shared_ptr<ControlBlock> block;
    std::vector<std::int64_t> ranks;
  };

  const std::shared_ptr<ThreadNeighbours> neighbours_;
  const GroupOptions options_;
  std::mutex mutex_;
  std::map<std::string, Group> groups_;
  bool aborted_ = false;
  std::string reason_;
};

std::vector<std::shared_ptr<World>> worlds_of(const std::shared_ptr<LocalJob>& job) {
  DTRAIN_CHECK(job->size() >= 1);
  std::vector<std::shared_ptr<World>> worlds;
  for (std::int64_t rank = 0; rank < job->size(); ++rank) {
    const auto connect = [job](const GroupIdentity& identity) {
      return std::make_unique<ShmTransport>(Seat{.block = job->block(identity),
                                                 .rank = identity.rank,
                                                 .world_ranks = identity.world_ranks},
                                            job->neighbours());
    };
    worlds.push_back(std::make_shared<CpuWorld>(rank, job->size(), job->options(),
                                                CpuBackend{.name = "local", .connect = connect}));
  }
  return worlds;
}

/// The exception of the rank that failed first; the others then fail because of it. A consequence
/// may arrive before its cause, but is recognised: it is an Error{comm}.
class FirstFailure {
 public:
  /// Call inside a catch block.
  void keep_current(LocalJob& job, std::int64_t rank) {
    try {
      throw;
    } catch (const base::Error& caught) {
      keep(caught.kind() != base::ErrorKind::comm);
    } catch (...) {
      keep(true);
    }
    try {
      throw;
    } catch (const std::exception& caught) {
      job.abort(fmt::format("rank {} failed: {}", rank, caught.what()));
    } catch (...) {
      job.abort(fmt::format("rank {} failed", rank));
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void keep(bool is_cause) {
    const std::lock_guard lock(mutex_);
    if (error_ && (is_cause_ || !is_cause)) return;
    error_ = std::current_exception();
    is_cause_ = is_cause;
  }

  std::mutex mutex_;
  std::exception_ptr error_;
  bool is_cause_ = false;
};

}  // namespace

std::vector<std::shared_ptr<World>> make_local_worlds(std::int64_t size,
                                                      const GroupOptions& options) {
  return worlds_of(std::make_shared<LocalJob>(size, options));
}

void run_local_ranks(std::int64_t size, const GroupOptions& options,
                     const std::function<void(const std::shared_ptr<World>&)>& body) {
  const auto job = std::make_shared<LocalJob>(size, options);
  FirstFailure failure;
  {
    std::vector<std::jthread> threads;  // joined at the end of this block
    for (auto& world : worlds_of(job)) {
      const std::int64_t rank = world->rank();
      try {
        threads.emplace_back([&job, &failure, &body, world = std::move(world)] {
          try {
            body(world);
          } catch (...) {
            failure.keep_current(*job, world->rank());
          }
        });
      } catch (...) {  // its thread does not start: those that have must not wait for it
        failure.keep_current(*job, rank);
        break;
      }
    }
  }
  failure.rethrow();
}

}  // namespace dtrain::comm
