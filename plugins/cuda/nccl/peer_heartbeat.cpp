#include "cuda/nccl/peer_heartbeat.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

namespace dtrain::cuda {
namespace {

using std::chrono::milliseconds;

// Ends are noticed this much later than they happen.
constexpr milliseconds kWatchPause{10};

// How often a rank says that it is there, where the timeout is long.
constexpr milliseconds kLongestPeriod{1000};

}  // namespace

PeerHeartbeat::PeerHeartbeat(std::shared_ptr<comm::ProcessGroup> ranks, milliseconds timeout,
                             std::function<void(std::exception_ptr)> on_end)
    : ranks_(std::move(ranks)),
      period_(std::min(timeout / 4, kLongestPeriod)),
      on_end_(std::move(on_end)),
      thread_([this] { run(); }) {}

PeerHeartbeat::~PeerHeartbeat() {
  if (std::uncaught_exceptions() > 0) ranks_->abort("a rank of it ended with an error");
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
    const at::Tensor heard = at::empty({1}, at::kLong);
    comm::Work hearing = ranks_->recv(heard, before);
    comm::Work saying = say(Word::alive);
    auto said_at = base::Clock::now();
    bool has_heard_farewell = false;
    bool has_said_farewell = false;
    while (!has_heard_farewell || !has_said_farewell) {
      const bool is_leaving = pause();
      if (!has_heard_farewell && hearing.is_completed()) {
        hearing.wait_host();
        has_heard_farewell =
            *heard.const_data_ptr<std::int64_t>() == static_cast<std::int64_t>(Word::farewell);
        if (!has_heard_farewell) hearing = ranks_->recv(heard, before);
      }
      const bool is_time = is_leaving || base::Clock::now() - said_at >= period_;
      if (!has_said_farewell && is_time && saying.is_completed()) {
        saying.wait_host();
        saying = say(is_leaving ? Word::farewell : Word::alive);
        said_at = base::Clock::now();
        has_said_farewell = is_leaving;
      }
    }
    saying.wait_host();
  } catch (...) {
    on_end_(std::current_exception());
  }
}

comm::Work PeerHeartbeat::say(Word word) {
  const at::Tensor text = at::full({1}, static_cast<std::int64_t>(word), at::kLong);
  return ranks_->send(text, (ranks_->rank() + 1) % ranks_->size());
}

// Returns whether this rank is about to leave.
bool PeerHeartbeat::pause() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kWatchPause, [this] { return is_leaving_; });
  return is_leaving_;
}

}  // namespace dtrain::cuda
