// The exception for a failed transport operation, e.g. a passed deadline or a lost peer.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::comm {

/// States the cause of a failed transport operation, but not the call and group. error_of()
/// (queued_group.h) converts it to a base::Error that names these too.
class TransportFailure : public std::runtime_error {
 public:
  enum class Cause {
    no_answer,  ///< the deadline passed
    gone,       ///< the connection to a peer is closed
    closed,     ///< this rank closed the group meanwhile
    failed,     ///< another reason, in the detail
  };

  /// `peers`: group ranks that caused it, as far as known; `detail`: more text, may be empty.
  TransportFailure(Cause cause, std::vector<std::int64_t> peers, const std::string& detail = {})
      : std::runtime_error(detail), cause_(cause), peers_(std::move(peers)) {}

  [[nodiscard]] Cause cause() const { return cause_; }
  [[nodiscard]] const std::vector<std::int64_t>& peers() const { return peers_; }

 private:
  Cause cause_;
  std::vector<std::int64_t> peers_;
};

}  // namespace dtrain::comm
