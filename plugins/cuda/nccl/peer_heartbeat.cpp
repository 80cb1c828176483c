#include "cuda/nccl/peer_heartbeat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

namespace dtrain::cuda {
namespace {

using std::chrono::milliseconds;

// The poll interval, which bounds how late a failure is detected.
constexpr milliseconds kHeartbeatPoll{10};

// The longest interval between heartbeats; shorter if the timeout is short.
constexpr milliseconds kMaxHeartbeatPeriod{1000};

}  // namespace

PeerHeartbeat::PeerHeartbeat(std::shared_ptr<comm::ProcessGroup> ranks, milliseconds timeout,
                             std::function<void(std::exception_ptr)> on_end)
    : ranks_(std::move(ranks)),
      period_(std::min(timeout / 4, kMaxHeartbeatPeriod)),
      on_end_(std::move(on_end)),
      thread_([this] { run(); }) {}

PeerHeartbeat::~PeerHeartbeat() {
  if (std::uncaught_exceptions() > 0) ranks_->abort("one of its ranks ended with an error");
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PeerHeartbeat::run() {
  const std::int64_t before = (ranks_->rank() + ranks_->size() - 1) % ranks_->size();
  try {
    const at::Tensor received = at::empty({1}, at::kLong);
    comm::Work receiving = ranks_->recv(received, before);
    comm::Work sending = send(Message::alive);
    auto sent_at = base::Clock::now();
    bool has_received_farewell = false;
    bool has_sent_farewell = false;
    while (!has_received_farewell || !has_sent_farewell) {
      const bool is_leaving = pause();
      if (!has_received_farewell && receiving.is_completed()) {
        receiving.wait_host();
        has_received_farewell = *received.const_data_ptr<std::int64_t>() ==
                                static_cast<std::int64_t>(Message::farewell);
        if (!has_received_farewell) receiving = ranks_->recv(received, before);
      }
      const bool is_time = is_leaving || base::Clock::now() - sent_at >= period_;
      if (!has_sent_farewell && is_time && sending.is_completed()) {
        sending.wait_host();
        sending = send(is_leaving ? Message::farewell : Message::alive);
        sent_at = base::Clock::now();
        has_sent_farewell = is_leaving;
      }
    }
    sending.wait_host();
  } catch (...) {
    on_end_(std::current_exception());
  }
}

comm::Work PeerHeartbeat::send(Message message) {
  const at::Tensor text = at::full({1}, static_cast<std::int64_t>(message), at::kLong);
  return ranks_->send(text, (ranks_->rank() + 1) % ranks_->size());
}

// Sleeps for one poll interval; returns true if this rank is leaving.
bool PeerHeartbeat::pause() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kHeartbeatPoll, [this] { return is_leaving_; });
  return is_leaving_;
}

}  // namespace dtrain::cuda
