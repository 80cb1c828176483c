#include "dtrain/comm/internal/gloo/gloo_messenger.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <list>
#include <optional>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

namespace dtrain::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval(50);
constexpr std::chrono::hours kNoTimeout(24 * 365);  // gloo takes 0 as its default

// How long gloo's own all-reduce may continue after a peer has finished it and exited.
constexpr milliseconds kRingDrainTimeout(5000);

}  // namespace

/// Aborts waits on closed connections. When a connection closes, gloo fails its queued messages,
/// but not a partly received one, which would wait for the deadline. So a thread checks the awaited
/// connections and their deadlines every 50 ms; gloo's own timeouts would count time during which
/// this process is stopped.
///
/// Threads: any.
class ConnectionWatchdog {
 public:
  explicit ConnectionWatchdog(GlooConnections& connections)
      : numbers_(static_cast<std::size_t>(connections.size())),
        never_(connections.recv_from_all(Tag::never, numbers_)) {
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
    if (deadline.passed()) return message.work->wait(kGlooMinTimeout);  // times out and closes them
    return wait_until_aborted(message, deadline);
  }

  /// Returns true once gloo's own collective has ended, false at the deadline or if a closed
  /// connection stops it.
  ///
  /// Throws: gloo's exceptions.
  [[nodiscard]] bool wait_collective(c10d::Work& work, const base::Deadline& deadline) {
    std::optional<base::Deadline> drain;
    while (true) {
      try {
        work.wait(kPollInterval);
        return true;
      } catch (const std::exception&) {
        if (work.isCompleted()) return work.wait();  // or throws why it failed
      }
      // A peer may finish and exit before this rank has received everything.
      if (!drain && !closed_peers().empty()) drain.emplace(kRingDrainTimeout);
      if ((drain && drain->passed()) || deadline.passed()) return false;
    }
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
  std::vector<std::int64_t> numbers_;  // by peer: buffers of never_
  std::vector<Message> never_;         // by peer: receives with Tag::never; empty for this rank
  std::list<Wait> waits_;
  std::jthread thread_;  // ends first
};

GlooMessenger::GlooMessenger(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
    : connections_(std::move(group)),
      notices_(connections_),
      watchdog_(std::make_unique<ConnectionWatchdog>(connections_)) {}

GlooMessenger::~GlooMessenger() = default;

Message GlooMessenger::send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  try {
    return connections_.send(data, bytes, peer, tag);
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

Message GlooMessenger::recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  try {
    return connections_.recv(data, bytes, peer, tag);
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
  try {
    const auto work = connections_.all_reduce(tensor, kNoTimeout);
    if (watchdog_->wait_collective(*work, deadline)) return;
  } catch (const std::exception&) {
    throw failure(-1);
  }
  connections_.leak();
  if (!watchdog_->closed_peers().empty()) throw closed_connection_failure(-1);
  connections_.close();
  throw TransportFailure(TransportFailure::Cause::no_answer, {});
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
  for (const auto closed : gone) culprits.insert(notices_.culprit_of(closed));
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return {TransportFailure::Cause::closed, {}, reason_};
    if (!culprits.empty()) notices_.blame(*culprits.begin());
  }
  notices_.send();
  return {TransportFailure::Cause::gone, {culprits.begin(), culprits.end()}};
}

void GlooMessenger::close(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = reason;
  }
  notices_.send();
  connections_.close();
}

}  // namespace dtrain::comm
