// The failure of a blocking operation among ranks, before it is put into words.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::comm {

/// Why an operation could not be carried out, before it is known in which call of which group;
/// error_of (queued_group.h) turns it into a base::Error.
class TransportFailure : public std::runtime_error {
 public:
  enum class Cause {
    no_answer,  ///< the deadline passed
    gone,       ///< the connection to a peer is closed
    closed,     ///< this side was closed meanwhile
    failed,     ///< the detail says why
  };

  /// `peers`: ranks of the group that are to blame, as far as known; `detail`: more words or none.
  TransportFailure(Cause cause, std::vector<std::int64_t> peers, const std::string& detail = {})
      : std::runtime_error(detail), cause_(cause), peers_(std::move(peers)) {}

  [[nodiscard]] Cause cause() const { return cause_; }
  [[nodiscard]] const std::vector<std::int64_t>& peers() const { return peers_; }

 private:
  Cause cause_;
  std::vector<std::int64_t> peers_;
};

}  // namespace dtrain::comm
