// A process group over any backend's transport: numbers the calls, runs them in order beside the
// caller, and words the errors.
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
#include "dtrain/comm/lane.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/transport_failure.h"

namespace dtrain::comm {

/// The interface of a backend for one group of at least two ranks: blocking operations, without
/// numbering, queues or error texts.
///
/// Throws:  TransportFailure, at the latest when the deadline has passed.
/// Threads: collective operations from one thread at a time; send and recv meanwhile from others,
///          one thread per peer and direction; close from any.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Carries the operation out and returns the bytes that this rank sent.
  virtual std::int64_t run(const Operation& operation, const base::Deadline& deadline) = 0;

  /// A rank of the group that a collective operation under way waits for at this moment; -1: none,
  /// or not known. Threads: any.
  [[nodiscard]] virtual std::int64_t awaited() const noexcept { return -1; }

  /// Makes operations under way and later ones fail on this rank and, soon after, on its peers.
  /// Idempotent; does not wait for anyone.
  virtual void close(const std::string& reason) noexcept = 0;
};

/// The end of an operation that a thread carries out: it sets the end once, Works wait for it.
///
/// Threads: any; finish() or fail() exactly once.
class HostCompletion : public Completion {
 public:
  /// Time spent in waits is added to `ring`'s counters. number: of the call in it, for a profile.
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

/// Who a group is.
struct GroupIdentity {
  std::string name;
  std::int64_t number = 0;                ///< among the groups that a world has made
  std::int64_t rank = 0;                  ///< this rank within the group
  std::vector<std::int64_t> world_ranks;  ///< of all members, in group order

  /// "group 3 'dp'", of no other group of the world.
  [[nodiscard]] std::string key() const { return fmt::format("group {} '{}'", number, name); }
};

/// The error of a call of that group, which names `peers`, world ranks, as those to blame.
[[nodiscard]] std::exception_ptr error_of(const GroupIdentity& group, const CallRecord& call,
                                          std::chrono::milliseconds timeout,
                                          const TransportFailure& failure,
                                          const std::vector<std::int64_t>& peers);

/// A ProcessGroup whose collective calls run one after the other in a thread of the group, so that
/// they proceed while the caller computes; a caller that waits for one that has not begun carries
/// it out itself. Sends and receives run in one further thread per peer and direction: they never
/// wait for each other or for collective calls.
///
/// After an error every later call fails with the same error. The destructor runs no collective and
/// does not wait for peers: calls still under way fail.
class QueuedGroup final : public ProcessGroup {
 public:
  /// `transport` may be null for a group of one.
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

  [[nodiscard]] Lane& lane_of(const Operation& operation);
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
  // The lanes come last: they end before what they use.
  Lane collectives_;
  std::map<std::int64_t, Lane> sends_;     // by peer
  std::map<std::int64_t, Lane> receives_;  // by peer
};

}  // namespace dtrain::comm
