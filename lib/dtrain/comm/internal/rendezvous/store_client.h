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

/// A rank that wants to be admitted.
struct Newcomer {
  std::int64_t rank = 0;
  std::int64_t size = 1;
  bool is_handed_down = false;    ///< the connection came from dtrun, so there is no stranger
  bool waits_for_rank_0 = false;  ///< dtrun holds the connection until rank 0 comes
  std::string token;              ///< the job's secret; empty: none
  std::string where;              ///< of the store, for messages: "at 127.0.0.1:29500"
  base::WaitingLines* waiting = nullptr;  ///< for a store that does not answer; null: silent
};

/// This attempt came to nothing, but a further one may come through: the connection was closed
/// before the rank was admitted, or what answered does not know the job's secret.
struct ClosedEarly {
  std::string reason;
};

/// Performs the handshake with the store, and returns the job's secret when this rank is admitted:
/// its own, or the one that the store hands out through munge.
///
/// Throws: ClosedEarly; Error{usage} for a secret that one side lacks or that differs, or without
///         munge where the store relies on it; Error{comm} for what is no store, or another user's;
///         Error{timeout} for silence; the refusal of the job.
std::string introduce_to_store(const base::Descriptor& connection, net::FrameBuffer& input,
                               const Newcomer& self, const base::Deadline& deadline);

/// The message with which a rank comes to a meeting of `members`.
[[nodiscard]] std::string meet_request(std::string_view key,
                                       const std::vector<std::int64_t>& members,
                                       std::string_view note, std::chrono::milliseconds patience);

/// Throws:  all calls but leave: the refusal of the job as it was worded; Error{comm} when rank 0
///          is gone; Error{timeout} when it does not answer.
/// Threads: any.
class StoreClient {
 public:
  /// Is admitted by the store over a connection just made.
  ///
  /// Throws: as introduce_to_store.
  StoreClient(base::Descriptor connection, const Newcomer& self, const base::Deadline& deadline);
  /// Leaves, unless an error is under way: then rank 0 tells the others.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  /// The job's secret, by which this rank was taken in; empty: by other means.
  [[nodiscard]] const std::string& secret() const { return secret_; }
  /// Waits until the job is refused, which this throws, or the deadline has passed.
  void wait_for_refusal(const base::Deadline& deadline);
  /// Waits until all `members` have called this with the same key, once each, and returns their
  /// notes; at the deadline, who is missing.
  [[nodiscard]] Attendance meet(std::string_view key, const std::vector<std::int64_t>& members,
                                std::string_view note, const base::Deadline& deadline);
  /// Makes every rank fail, this one included.
  [[noreturn]] void refuse(base::ErrorKind kind, const std::string& message);
  /// Declares that this rank is done with the store; nothing else may be called then.
  void leave() noexcept;

 private:
  std::string request(const std::string& message, const base::Deadline& deadline);

  std::mutex mutex_;
  base::Descriptor connection_;
  net::FrameBuffer input_;
  std::string secret_;
};

}  // namespace dtrain::comm
