#include "dtrain/comm/internal/gloo/failure_notices.h"

#include <chrono>
#include <exception>
#include <utility>

namespace dtrain::comm {

namespace {

// A notice queues behind a partly sent message on the same connection.
constexpr std::chrono::milliseconds kNoticeTimeout(200);

}  // namespace

std::int64_t FailureNotices::culprit_of(std::int64_t peer) {
  const auto notice = notice_from(peer).value_or(-1);
  return notice >= 0 && notice != connections_.rank() ? notice : peer;
}

std::optional<std::int64_t> FailureNotices::notice_from(std::int64_t peer) {
  if (!trusts_peers_) return std::nullopt;
  const auto index = static_cast<std::size_t>(peer);
  const std::lock_guard lock(mutex_);
  if (recvs_[index].work) {
    try {
      recvs_[index].work->wait(kGlooMinTimeout);  // the connection is closed
      recvs_[index].work.reset();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return notices_[index];
}

void FailureNotices::blame(std::int64_t culprit) {
  const std::lock_guard lock(mutex_);
  if (culprit_ < 0) culprit_ = culprit;
}

void FailureNotices::send() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_sent_, true)) return;
  }
  std::vector<Message> notices;
  for (std::int64_t peer = 0; peer < connections_.size(); ++peer) {
    if (peer == connections_.rank()) continue;
    try {
      notices.push_back(connections_.send(reinterpret_cast<const std::byte*>(&culprit_),
                                          sizeof culprit_, peer, Tag::failure_notice));
    } catch (const std::exception&) {
      // A disconnected peer needs no notice.
    }
  }
  for (const Message& notice : notices) {
    try {
      notice.work->wait(kNoticeTimeout);
    } catch (const std::exception&) {
      // Disconnected meanwhile, or too slow, which closed all connections.
    }
  }
}

}  // namespace dtrain::comm
