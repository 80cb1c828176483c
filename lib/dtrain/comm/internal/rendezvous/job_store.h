// The state of the rendezvous store that rank 0 serves: joined ranks, pending gathers, and the
// failure that ends the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/internal/rendezvous/wire.h"

namespace dtrain::comm {

/// Why the job cannot start; every rank fails with this error.
struct JobFailure {
  base::ErrorKind kind = base::ErrorKind::comm;
  std::string message;
};

/// The key of the first gather, of all ranks; appears in messages.
inline constexpr const char* kJobKey = "the job";

/// An all-gather among some ranks: collects one value per member.
class PendingGather {
 public:
  explicit PendingGather(std::vector<std::int64_t> members);

  [[nodiscard]] const std::vector<std::int64_t>& members() const { return members_; }
  /// Stores a member's value; false if the rank is not a member or has joined before.
  [[nodiscard]] bool join(std::int64_t rank, std::string value);
  /// The packed GatherResult, the same for every member; nullptr until all have joined.
  [[nodiscard]] const std::string* values() const { return packed_.empty() ? nullptr : &packed_; }
  /// The state so far: missing members, or all values.
  [[nodiscard]] GatherResult result() const;

 private:
  std::vector<std::int64_t> members_;
  std::vector<std::optional<std::string>> values_;  // by member
  std::size_t num_joined_ = 0;
  std::string packed_;  // empty until all have joined
};

/// The rendezvous state of one job.
///
/// Threads: one.
class JobStore {
 public:
  explicit JobStore(std::int64_t size);

  /// The number of ranks.
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Admits a process that claims to be rank `rank` of `size`; fails the job if that contradicts
  /// the claims of others.
  void admit(std::uint64_t rank, std::uint64_t size);
  [[nodiscard]] bool all_joined() const { return missing_.empty(); }

  /// "rank 1 of 2", "ranks 1, 3 of 8": the ranks that have not connected; names at most 10 and
  /// counts the others. Takes time proportional to the number of ranks named.
  [[nodiscard]] std::string describe_missing() const;

  /// Adds the value of `rank` to the gather `key`; fails the job if its members disagree about who
  /// takes part.
  void join_gather(const std::string& key, const std::vector<std::int64_t>& members,
                   std::int64_t rank, std::string value);
  /// The packed GatherResult of that gather; nullptr until all members have joined.
  [[nodiscard]] const std::string* values(const std::string& key) const;
  /// The missing members of that gather as a packed GatherResult.
  [[nodiscard]] std::string missing(const std::string& key) const;

  /// Grows whenever a gather completes or the job fails.
  [[nodiscard]] std::uint64_t version() const { return version_; }

  /// Fails the job; only the first call has an effect.
  void fail_job(base::ErrorKind kind, std::string message);
  [[nodiscard]] const std::optional<JobFailure>& failure() const { return failure_; }

 private:
  std::int64_t size_;
  std::set<std::uint64_t> missing_;  // ranks that have not connected
  std::map<std::string, PendingGather> gathers_;
  std::size_t stored_bytes_ = 0;  // members and values of all gathers
  std::optional<JobFailure> failure_;
  std::uint64_t version_ = 0;
};

}  // namespace dtrain::comm
