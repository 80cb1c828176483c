#include "dtrain/comm/internal/gloo/gloo_messenger.h"

#include <ATen/ops/from_blob.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

namespace dtrain::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMinTimeout(1);  // gloo takes 0 as infinite
constexpr milliseconds kPollInterval(50);
constexpr std::chrono::hours kNoTimeout(24 * 365);  // gloo takes 0 as its default

// A notice queues behind a partly sent message on the same connection.
constexpr milliseconds kNoticeTimeout(200);

// How long gloo's own all-reduce may continue after a peer has finished it and exited.
constexpr milliseconds kRingDrainTimeout(5000);

at::Tensor view_of(const std::byte* data, std::int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, at::kByte);
}

}  // namespace

/// Aborts waits on closed connections. When a connection closes, gloo fails its queued messages,
/// but not a partly received one, which would wait for the deadline. So a thread checks the awaited
/// connections and their deadlines every 50 ms; gloo's own timeouts would count time during which
/// this process is stopped.
///
/// Threads: any.
class ConnectionWatchdog {
 public:
  /// `never`: by peer, a posted receive with Tag::never; empty for this rank itself.
  explicit ConnectionWatchdog(std::vector<Message> never) : never_(std::move(never)) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  ConnectionWatchdog(const ConnectionWatchdog&) = delete;
  ConnectionWatchdog& operator=(const ConnectionWatchdog&) = delete;

  /// The peers whose connections are closed.
  [[nodiscard]] std::vector<std::int64_t> closed_peers() {
    const std::lock_guard lock(mutex_);
    std::vector<std::int64_t> closed;
    for (std::size_t peer = 0; peer < never_.size(); ++peer) {
      if (is_closed(static_cast<std::int64_t>(peer))) {
        closed.push_back(static_cast<std::int64_t>(peer));
      }
    }
    return closed;
  }

  /// Waits until the message is received or sent. Returns false if its connection closed first.
  ///
  /// Throws: gloo's exceptions, also at the deadline.
  [[nodiscard]] bool wait(const Message& message, const base::Deadline& deadline) {
    if (wait_until_aborted(message, deadline)) return true;
    // gloo reports the abort even if the message has arrived: clear the abort and wait again. (A
    // wait that times out would close all connections.)
    message.work->abort();
    message.work->wait(kPollInterval);
    if (deadline.passed()) return message.work->wait(kMinTimeout);  // times out and closes them
    return wait_until_aborted(message, deadline);
  }

 private:
  struct Wait {
    const Message* message;
    const base::Deadline* deadline;
  };

  void run(const std::stop_token& stop) {
    std::condition_variable_any never;
    std::unique_lock lock(mutex_);
    while (!never.wait_for(lock, stop, kPollInterval, [&] { return stop.stop_requested(); })) {
      for (const auto& [message, deadline] : waits_) {
        if (deadline->passed() || is_closed(message->peer)) message->work->abort();
      }
    }
  }

  /// As wait(), but may return false although the message has arrived.
  bool wait_until_aborted(const Message& message, const base::Deadline& deadline) {
    std::list<Wait>::iterator place;
    {
      const std::lock_guard lock(mutex_);
      place = waits_.insert(waits_.end(), {&message, &deadline});
    }
    std::exception_ptr failure;
    bool has_come = false;
    try {
      has_come = message.work->wait(kNoTimeout);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      waits_.erase(place);
    }
    if (failure) std::rethrow_exception(failure);
    return has_come;
  }

  [[nodiscard]] bool is_closed(std::int64_t peer) {
    const auto& work = never_[static_cast<std::size_t>(peer)].work;
    if (!work) return false;
    try {
      work->abort();  // ends the wait at once, without gloo closing all connections
      work->wait(kPollInterval);
      return false;
    } catch (const std::exception&) {
      return true;
    }
  }

  std::mutex mutex_;
  std::vector<Message> never_;
  std::list<Wait> waits_;
  std::jthread thread_;  // ends first
};

GlooMessenger::GlooMessenger(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
    : group_(std::move(group)),
      notices_(static_cast<std::size_t>(size()), -1),
      never_(static_cast<std::size_t>(size())),
      notice_recvs_(post_recv_from_all(Tag::failure_notice, notices_)),
      watchdog_(std::make_unique<ConnectionWatchdog>(post_recv_from_all(Tag::never, never_))) {}

GlooMessenger::~GlooMessenger() {
  // Leaks the group: its destructor would wait for the stuck thread.
  if (is_ring_stuck_) (void)group_.release();
}

std::vector<Message> GlooMessenger::post_recv_from_all(Tag tag,
                                                       std::vector<std::int64_t>& numbers) {
  std::vector<Message> messages(numbers.size());
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    messages[index] =
        post_recv(reinterpret_cast<std::byte*>(&numbers[index]), sizeof(std::int64_t), peer, tag);
  }
  return messages;
}

Message GlooMessenger::send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  try {
    const std::lock_guard lock(post_mutex_);
    return {group_->send(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

Message GlooMessenger::post_recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  const std::lock_guard lock(post_mutex_);
  return {group_->recv(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
}

Message GlooMessenger::recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  try {
    return post_recv(data, bytes, peer, tag);
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

void GlooMessenger::wait(const Message& message, const base::Deadline& deadline) {
  try {
    if (watchdog_->wait(message, deadline)) return;
  } catch (const std::exception&) {
    throw failure(message.peer);
  }
  throw closed_connection_failure(message.peer);
}

void GlooMessenger::wait(const std::vector<Message>& messages, const base::Deadline& deadline) {
  for (const Message& message : messages) {
    awaited_ = message.peer;
    wait(message, deadline);
  }
  awaited_ = -1;
}

void GlooMessenger::all_reduce(const at::Tensor& tensor, const base::Deadline& deadline) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::SUM;
  options.timeout = deadline.remaining();
  bool has_ended = false;
  try {
    c10::intrusive_ptr<c10d::Work> work;
    {
      const std::lock_guard lock(post_mutex_);
      work = group_->allreduce(tensors, options);
    }
    has_ended = wait_collective(*work);
  } catch (const std::exception&) {
    throw failure(-1);
  }
  if (has_ended) return;
  is_ring_stuck_ = true;
  throw closed_connection_failure(-1);
}

bool GlooMessenger::wait_collective(c10d::Work& work) {
  std::optional<base::Deadline> drain;
  while (true) {
    try {
      work.wait(kPollInterval);
      return true;
    } catch (const std::exception&) {
      if (work.isCompleted()) return work.wait();  // or throws why it failed
    }
    // A peer may finish and exit before this rank has received everything.
    if (!drain && !watchdog_->closed_peers().empty()) drain.emplace(kRingDrainTimeout);
    if (drain && drain->passed()) return false;
  }
}

TransportFailure GlooMessenger::failure(std::int64_t peer) {
  using Cause = TransportFailure::Cause;
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return {Cause::closed, {}, reason_};
  }
  std::string text;
  try {
    throw;
  } catch (const std::exception& caught) {
    text = caught.what();
  }
  if (text.find("Timed out") == std::string::npos) return closed_connection_failure(peer);
  std::vector<std::int64_t> late;
  if (peer >= 0) late.push_back(peer);
  return {Cause::no_answer, late};
}

TransportFailure GlooMessenger::closed_connection_failure(std::int64_t peer) {
  std::vector<std::int64_t> gone = watchdog_->closed_peers();
  if (gone.empty() && peer >= 0) gone.push_back(peer);
  std::set<std::int64_t> culprits;
  for (const auto messenger : gone) {
    const auto notice = notice_from(messenger).value_or(-1);
    culprits.insert(notice >= 0 && notice != rank() ? notice : messenger);
  }
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return {TransportFailure::Cause::closed, {}, reason_};
    if (culprit_ < 0 && !culprits.empty()) culprit_ = *culprits.begin();
  }
  send_failure_notices();
  return {TransportFailure::Cause::gone, {culprits.begin(), culprits.end()}};
}

std::optional<std::int64_t> GlooMessenger::notice_from(std::int64_t peer) {
  if (!trusts_peers_) return std::nullopt;
  const auto index = static_cast<std::size_t>(peer);
  const std::lock_guard lock(close_mutex_);
  if (notice_recvs_[index].work) {
    try {
      notice_recvs_[index].work->wait(kMinTimeout);  // the connection is closed
      notice_recvs_[index].work.reset();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return notices_[index];
}

void GlooMessenger::close(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = reason;
  }
  send_failure_notices();
  close_connections();
}

void GlooMessenger::send_failure_notices() noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (std::exchange(has_sent_notices_, true)) return;
  }
  std::vector<Message> notices;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      notices.push_back(send(reinterpret_cast<const std::byte*>(&culprit_), sizeof culprit_, peer,
                             Tag::failure_notice));
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

void GlooMessenger::close_connections() noexcept {
  // gloo has no call that closes its connections, but a wait that times out closes them and fails
  // all waits on both sides.
  std::int64_t nothing = 0;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      post_recv(reinterpret_cast<std::byte*>(&nothing), sizeof nothing, peer, Tag::never)
          .work->wait(kMinTimeout);
    } catch (const std::exception&) {
      // Either this peer's connection was closed already, or all are now; continuing is harmless.
    }
  }
}

}  // namespace dtrain::comm
