// A process group over any transport: numbers the calls, runs them in order beside the caller, and
// words the errors.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/comm/lane.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/transport.h"

namespace dtrain::comm {

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
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(identity_.world_ranks.size());
  }
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
