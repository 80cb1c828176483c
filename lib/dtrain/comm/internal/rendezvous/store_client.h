// A rank's connection to the store that rank 0 serves.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/log.h"
#include "dtrain/comm/internal/rendezvous/wire.h"
#include "dtrain/net/message.h"

namespace dtrain::comm {

/// A rank's request to join the store.
struct JoinRequest {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  bool is_inherited = false;      ///< the connection came from dtrun: already authenticated
  bool waits_for_rank_0 = false;  ///< dtrun holds the connection until rank 0 starts
  std::string token;              ///< the job's secret; empty: none
  std::string where;              ///< the store's address, for messages: "at 127.0.0.1:29500"
  base::WaitReporter* waiting = nullptr;  ///< reports a store that does not answer; null: silent
};

/// Thrown when joining failed but a retry may succeed: the connection was closed before the rank
/// was admitted, or the server does not know the job's secret.
struct RetryableJoinError {
  std::string reason;
};

/// Performs the handshake with the store. Returns the job's secret: this rank's own, or the one
/// that the store sent through munge.
///
/// Throws: RetryableJoinError; Error{usage} if the secrets differ, one side has none, or munge is
///         required and fails; Error{comm} if the server is not a store, or another user's;
///         Error{timeout} without an answer; the job's failure.
std::string join_store(const base::Descriptor& connection, net::FrameBuffer& input,
                       const JoinRequest& self, const base::Deadline& deadline);

/// Encodes a rank's request to take part in a gather among `members`.
[[nodiscard]] std::string gather_request(std::string_view key,
                                         const std::vector<std::int64_t>& members,
                                         std::string_view value, std::chrono::milliseconds timeout);

/// A rank's connection to the store.
///
/// Throws:  all calls but leave: the job's failure; Error{comm} if rank 0 is gone; Error{timeout}
///          if it does not answer.
/// Threads: any.
class StoreClient {
 public:
  /// Joins the store over a new connection.
  ///
  /// Throws: as join_store.
  StoreClient(base::Descriptor connection, const JoinRequest& self, const base::Deadline& deadline);
  /// Leaves the store. During stack unwinding only disconnects, so that rank 0 fails the job.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// The secret that authenticated this rank; empty: it was authenticated by another method.
  [[nodiscard]] const std::string& secret() const { return secret_; }
  /// Waits until the deadline, and throws the job's failure if there is one.
  void wait_for_failure(const base::Deadline& deadline);
  /// Waits until all `members` have called this once with the same key, and returns their values;
  /// at the deadline returns the missing members.
  [[nodiscard]] GatherResult all_gather(std::string_view key,
                                        const std::vector<std::int64_t>& members,
                                        std::string_view value, const base::Deadline& deadline);
  /// Fails the job: every rank throws this error, this one included.
  [[noreturn]] void fail_job(base::ErrorKind kind, const std::string& message);
  /// Closes the connection; no other call may follow.
  void leave() noexcept;

 private:
  std::string request(const std::string& message, const base::Deadline& deadline);

  std::mutex mutex_;
  base::Descriptor connection_;
  net::FrameBuffer input_;
  std::string secret_;
};

}  // namespace dtrain::comm
