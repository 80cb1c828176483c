// A process group over any backend's transport: numbers calls, runs them asynchronously in order,
// and formats errors.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/serial_executor.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::comm {

/// A backend's interface for one group of at least two ranks: blocking operations.
///
/// Throws:  TransportFailure, at the latest at the deadline.
/// Threads: collective operations from one thread at a time; send and recv meanwhile from others,
///          one thread per peer and direction; close from any.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Executes the operation and returns the bytes that this rank sent.
  virtual std::int64_t run(const Operation& operation, const base::Deadline& deadline) = 0;

  /// The group rank for which a running collective operation is waiting; -1: none or unknown.
  /// Threads: any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }

  /// Fails running and later operations on this rank and, soon after, on its peers. Idempotent;
  /// does not block.
  virtual void close(const std::string& reason) noexcept = 0;
};

/// The Completion of an operation that a host thread executes.
///
/// Threads: any; finish() or fail() exactly once.
class HostCompletion : public Completion {
 public:
  /// Adds the time spent in waits to `ring`'s counters. number: the call's, for profiles.
  explicit HostCompletion(std::shared_ptr<CallRing> ring, std::uint64_t number = 0)
      : ring_(std::move(ring)), number_(number) {}

  void finish() { end(nullptr); }
  void fail(std::exception_ptr error) { end(std::move(error)); }

  void wait() override { wait_host(); }
  void wait_host() override;
  [[nodiscard]] bool is_completed() const override;

 private:
  /// Called by a waiting thread before it blocks; may execute the operation.
  virtual void help() {}
  void end(std::exception_ptr error);

  std::shared_ptr<CallRing> ring_;
  std::uint64_t number_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool completed_ = false;
  std::exception_ptr error_;
};

/// Identifies a group and this rank within it.
struct GroupIdentity {
  std::string name;
  std::int64_t number = 0;                ///< among the groups that a world has made
  std::int64_t rank = 0;                  ///< this rank within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order

  /// "group 3 'dp'"; unique within the world.
  [[nodiscard]] std::string key() const { return fmt::format("group {} '{}'", number, name); }
};

/// Creates the error of a failed call. peers: world ranks that caused it.
[[nodiscard]] std::exception_ptr error_of(const GroupIdentity& group, const CallRecord& call,
                                          std::chrono::milliseconds timeout,
                                          const TransportFailure& failure,
                                          const std::vector<std::int64_t>& peers);

/// A ProcessGroup whose collective calls run in order in a thread of the group, while the caller
/// computes; a caller that waits for a queued call executes it itself. Sends and receives run in
/// one more thread per peer and direction, so that they never wait for each other or for
/// collectives.
///
/// After an error every later call fails with the same error. The destructor runs no collective and
/// does not wait for peers: unfinished calls fail.
class QueuedGroup final : public ProcessGroup {
 public:
  /// `transport` may be null for a single-rank group.
  QueuedGroup(GroupIdentity identity, const GroupOptions& options,
              std::unique_ptr<Transport> transport);
  ~QueuedGroup() override;

  [[nodiscard]] std::int64_t rank() const override { return identity_.rank; }
  [[nodiscard]] std::int64_t size() const override { return std::ssize(identity_.world_ranks); }
  [[nodiscard]] const std::string& name() const override { return identity_.name; }

  [[nodiscard]] Work post(Operation operation) override;
  void abort(const std::string& reason) noexcept override;
  [[nodiscard]] CallRing& calls() const override { return *ring_; }
  [[nodiscard]] std::int64_t awaited() const noexcept override;

 private:
  class Call;

  [[nodiscard]] SerialExecutor& executor_for(const Operation& operation);
  /// Keeps the first error and returns the one kept.
  std::exception_ptr keep_error(std::exception_ptr error) noexcept;
  std::exception_ptr error() const;
  [[nodiscard]] std::int64_t world_rank(std::int64_t rank) const;

  GroupIdentity identity_;
  GroupOptions options_;
  std::shared_ptr<CallRing> ring_;
  std::unique_ptr<Transport> transport_;
  mutable std::mutex error_mutex_;
  std::exception_ptr error_;
  std::atomic<std::int64_t> pending_{0};  // calls posted and not ended
  // Declared last, so that these threads end before the members that they use are destroyed.
  SerialExecutor collectives_;
  std::map<std::int64_t, SerialExecutor> sends_;     // by peer
  std::map<std::int64_t, SerialExecutor> receives_;  // by peer
};

}  // namespace dtrain::comm
