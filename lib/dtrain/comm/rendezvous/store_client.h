// A rank's connection to the store that rank 0 serves. Private to comm.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/deadline.h"
#include "dtrain/base/descriptor.h"
#include "dtrain/base/error.h"
#include "dtrain/comm/rendezvous/gathering.h"
#include "dtrain/comm/rendezvous/handshake.h"
#include "dtrain/net/frames.h"

namespace dtrain::comm {

/// The message with which a rank comes to a meeting of `members`.
[[nodiscard]] std::string meet_request(std::string_view key,
                                       const std::vector<std::int64_t>& members,
                                       std::string_view note, std::chrono::milliseconds patience);

/// Throws:  all calls but leave: the refusal of the job as it was worded; Error{comm} when rank 0
///          is gone; Error{timeout} when it does not answer.
/// Threads: any.
class StoreClient {
 public:
  /// Is taken in by the store over a connection just made.
  ///
  /// Throws: as introduce_to_store.
  StoreClient(base::Descriptor connection, const Newcomer& self, const base::Deadline& deadline);
  /// Leaves, unless an error is under way: then rank 0 tells the others.
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void set(std::string_view key, std::string_view value);
  /// The job's secret, by which this rank was taken in; empty: by other means.
  [[nodiscard]] const std::string& secret() const { return secret_; }
  /// Waits until the key has a value; nothing when it has none by the deadline.
  [[nodiscard]] std::optional<std::string> get(std::string_view key,
                                               const base::Deadline& deadline);
  /// Waits until all `members` have called this with the same key, once each, and returns their
  /// notes; at the deadline, who is missing.
  [[nodiscard]] Attendance meet(std::string_view key, const std::vector<std::int64_t>& members,
                                std::string_view note, const base::Deadline& deadline);
  /// Makes every rank fail, this one included.
  [[noreturn]] void refuse(base::ErrorKind kind, const std::string& message);
  /// Declares that this rank is done with the store; nothing else may be called then.
  void leave() noexcept;

 private:
  std::optional<std::string> request(const std::string& message, const base::Deadline& deadline);

  std::mutex mutex_;
  base::Descriptor connection_;
  net::FrameBuffer input_;
  std::string secret_;
};

}  // namespace dtrain::comm
