// The interface of a group of communicating ranks, and the handles of its operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "dtrain/comm/call_ring.h"
#include "dtrain/comm/operation.h"

namespace dtrain::comm {

/// The completion of one operation. A backend implements it; Works refer to it.
///
/// Throws:  wait and wait_host rethrow the operation's error, every time they are called.
/// Threads: any.
class Completion {
 public:
  virtual ~Completion() = default;

  /// Orders the caller's stream after the operation, without blocking the host: later work on the
  /// stream sees the result. Blocks for host memory, which has no stream.
  virtual void wait() = 0;
  /// Blocks the calling thread until the operation has ended.
  virtual void wait_host() = 0;
  /// Never blocks; true also after an error.
  [[nodiscard]] virtual bool is_completed() const = 0;
};

/// The handle of an operation in progress. Copies refer to the same operation, which proceeds
/// whether or not anyone waits. A default-constructed Work is complete.
///
/// Throws:  as Completion.
/// Threads: any.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<Completion> completion) : completion_(std::move(completion)) {}

  /// As Completion::wait; for results used on a stream.
  void wait() {
    if (completion_) completion_->wait();
  }
  /// As Completion::wait_host; for results read on the host.
  void wait_host() {
    if (completion_) completion_->wait_host();
  }
  [[nodiscard]] bool is_completed() const { return !completion_ || completion_->is_completed(); }

 private:
  std::shared_ptr<Completion> completion_;
};

/// The order in which contributions are added.
enum class Reduction {
  ordered,  ///< a fixed binary tree over the group's ranks: the bits depend only on their values
  fast,     ///< whichever order the backend finds fastest
};

/// Options that all groups of a job share.
struct GroupOptions {
  std::chrono::milliseconds timeout{
      600'000};  ///< the longest any wait may take before Error{timeout}
  Reduction reduction = Reduction::ordered;
  bool shares_devices = false;  ///< several ranks may compute on one device
};

/// The traffic of a group that determines its transport's memory.
///
/// Units: ranks, and bytes of one tensor.
struct GroupLoad {
  std::int64_t size = 1;     ///< of the group
  bool is_first = true;      ///< this rank is the group's first
  std::int64_t reduced = 0;  ///< the largest tensor that is reduced
  std::int64_t foreign = 0;  ///< the largest one in a collective and not from World::allocate
  std::int64_t peers = 0;    ///< ranks to which such tensors are sent
};

/// A group of communicating ranks. All operations are numbered, timed and counted in its CallRing.
/// operation.h documents each operation.
///
/// Collective: everything but send, recv and abort: every rank of the group calls it, in the same
///             order.
///
/// Async:      operations return before completion; a tensor belongs to the group until
///             Work::wait() returns.
///
/// Throws:     from Work::wait() and barrier(): Error{timeout} naming the group, the call and the
///             awaited peer; Error{comm} if a peer is gone or the group was aborted. After an error
///             every later call fails.
///
/// Threads:    one caller at a time; abort() from any thread.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;

  [[nodiscard]] virtual std::int64_t rank() const = 0;  ///< within the group
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;

  /// Starts an operation. The calls below are shorthands for it.
  [[nodiscard]] virtual Work post(Operation operation) = 0;

  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
    return post(AllReduce{tensor, op});
  }
  [[nodiscard]] Work reduce_scatter(const at::Tensor& input, const at::Tensor& output) {
    return post(ReduceScatter{input, output});
  }
  [[nodiscard]] Work all_gather(const at::Tensor& input, const at::Tensor& output) {
    const PartCounts counts(static_cast<std::size_t>(size()), input.numel());
    return post(AllGather{input, PartedTensor(output, {counts.data(), counts.size()})});
  }
  [[nodiscard]] Work all_gather_v(const at::Tensor& input, const at::Tensor& output,
                                  std::span<const std::int64_t> counts) {
    return post(AllGather{input, PartedTensor(output, counts), /*takes_counts=*/true});
  }
  [[nodiscard]] Work all_to_all(const at::Tensor& input, std::span<const std::int64_t> send_counts,
                                const at::Tensor& output,
                                std::span<const std::int64_t> recv_counts) {
    return post(AllToAll{PartedTensor(input, send_counts), PartedTensor(output, recv_counts)});
  }
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) {
    return post(Broadcast{tensor, root});
  }
  [[nodiscard]] Work send(const at::Tensor& tensor, std::int64_t peer) {
    return post(Send{tensor, peer});
  }
  [[nodiscard]] Work recv(const at::Tensor& tensor, std::int64_t peer) {
    return post(Recv{tensor, peer});
  }
  void barrier() { post(Barrier{}).wait_host(); }

  /// Fails every pending and later operation of this rank with Error{comm} naming `reason`; the
  /// peers' operations fail soon afterwards. Never blocks.
  virtual void abort(const std::string& reason) noexcept = 0;

  [[nodiscard]] virtual CallRing& calls() const = 0;
  /// The world rank for which a running collective call is waiting; -1: none or unknown. Threads:
  /// any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }
};

}  // namespace dtrain::comm
