// Messages that tell the peers of a gloo group which rank's exit is the cause of a failure.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "dtrain/comm/internal/gloo/gloo_connections.h"

namespace dtrain::comm {

/// Exchanges failure notices. Before a rank closes its connections, it sends its peers the rank
/// whose exit is the cause (-1: its own decision); otherwise a slower peer would blame this rank.
/// After a timeout gloo has closed the connections already, and the peers' errors point to this
/// rank's own message.
///
/// Threads: any.
class FailureNotices {
 public:
  /// Throws: gloo's exception for a peer that has exited already.
  explicit FailureNotices(GlooConnections& connections)
      : connections_(connections),
        notices_(static_cast<std::size_t>(connections.size()), -1),
        recvs_(connections.recv_from_all(Tag::failure_notice, notices_)) {}

  /// Trusts the peers' notices from now on. Call it once all peers are authenticated.
  void trust_peers() { trusts_peers_ = true; }
  /// Returns the rank whose exit made `peer` close its connection: the rank that its notice names,
  /// if it sent one and is trusted, otherwise `peer`.
  [[nodiscard]] std::int64_t culprit_of(std::int64_t peer);
  /// Names the cause in the notices to come. The first call decides.
  void blame(std::int64_t culprit);
  /// Sends the notices once, and waits briefly for them to be sent.
  void send() noexcept;

 private:
  /// Returns the failure notice of a disconnected peer, if it sent one and is trusted.
  std::optional<std::int64_t> notice_from(std::int64_t peer);

  GlooConnections& connections_;
  std::mutex mutex_;
  std::int64_t culprit_ = -1;
  bool has_sent_ = false;
  std::atomic<bool> trusts_peers_{false};
  std::vector<std::int64_t> notices_;  // by peer
  std::vector<Message> recvs_;         // by peer: posted from the start, used once
};

}  // namespace dtrain::comm
