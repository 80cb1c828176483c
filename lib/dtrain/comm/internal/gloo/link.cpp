#include "dtrain/comm/internal/gloo/link.h"

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

constexpr milliseconds kMoment(1);  // gloo takes 0 for ever
constexpr milliseconds kLookAround(50);
constexpr std::chrono::hours kForGood(24 * 365);  // gloo takes 0 for its own limit

// A note waits behind the message that is halfway through on the same connection.
constexpr milliseconds kNotePatience(200);

// Within gloo's own all-reduce: from the end of a peer that had all it needs to that of this rank.
constexpr milliseconds kPatience(5000);

at::Tensor view_of(const std::byte* data, std::int64_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {bytes}, at::kByte);
}

}  // namespace

/// When a connection closes, gloo fails the messages that wait for their turn, but not one that is
/// halfway through, whose receiver would wait for the deadline. So a thread checks every 50 ms the
/// connections over which a rank waits, and their deadlines: gloo's own timeouts would count time
/// that this process spends stopped.
///
/// Threads: any.
class CloseWatch {
 public:
  /// `never`: by peer, a receive of a message that nobody sends; no work for this rank itself.
  explicit CloseWatch(std::vector<Message> never) : never_(std::move(never)) {
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
  CloseWatch(const CloseWatch&) = delete;
  CloseWatch& operator=(const CloseWatch&) = delete;

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

  /// Waits until the message has come or gone. False: its connection was closed before.
  ///
  /// Throws: what gloo throws, at the deadline too.
  [[nodiscard]] bool wait(const Message& message, const base::Deadline& deadline) {
    if (wait_for_word(message, deadline)) return true;
    // gloo prefers the watch's word to a message that has come; freed of late words, a second wait
    // tells. (One that times out would close all connections.)
    message.work->abort();
    message.work->wait(kLookAround);
    if (deadline.passed()) return message.work->wait(kMoment);  // times out, and closes them
    return wait_for_word(message, deadline);
  }

 private:
  struct Wait {
    const Message* message;
    const base::Deadline* deadline;
  };

  void run(const std::stop_token& stop) {
    std::condition_variable_any never;
    std::unique_lock lock(mutex_);
    while (!never.wait_for(lock, stop, kLookAround, [&] { return stop.stop_requested(); })) {
      for (const auto& [message, deadline] : waits_) {
        if (deadline->passed() || is_closed(message->peer)) message->work->abort();
      }
    }
  }

  /// The same as wait(), but the message may have come where it returns false.
  bool wait_for_word(const Message& message, const base::Deadline& deadline) {
    std::list<Wait>::iterator place;
    {
      const std::lock_guard lock(mutex_);
      place = waits_.insert(waits_.end(), {&message, &deadline});
    }
    std::exception_ptr failure;
    bool has_come = false;
    try {
      has_come = message.work->wait(kForGood);
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
      work->abort();  // so that the wait is over at once, and without gloo's closing everything
      work->wait(kLookAround);
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

Link::Link(c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
    : group_(std::move(group)),
      notes_(static_cast<std::size_t>(size()), -1),
      never_(static_cast<std::size_t>(size())),
      note_recvs_(expect_from_all(Tag::note, notes_)),
      watch_(std::make_unique<CloseWatch>(expect_from_all(Tag::never, never_))) {}

Link::~Link() {
  // Its end would wait for the thread that is stuck; so it stays until the process ends.
  if (is_stuck_) (void)group_.release();
}

std::vector<Message> Link::expect_from_all(Tag tag, std::vector<std::int64_t>& numbers) {
  std::vector<Message> messages(numbers.size());
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const auto index = static_cast<std::size_t>(peer);
    messages[index] =
        post_recv(reinterpret_cast<std::byte*>(&numbers[index]), sizeof(std::int64_t), peer, tag);
  }
  return messages;
}

Message Link::send(const std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  try {
    const std::lock_guard lock(post_mutex_);
    return {group_->send(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

Message Link::post_recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  std::vector<at::Tensor> tensors{view_of(data, bytes)};
  const std::lock_guard lock(post_mutex_);
  return {group_->recv(tensors, static_cast<int>(peer), static_cast<int>(tag)), peer};
}

Message Link::recv(std::byte* data, std::int64_t bytes, std::int64_t peer, Tag tag) {
  try {
    return post_recv(data, bytes, peer, tag);
  } catch (const std::exception&) {
    throw failure(peer);
  }
}

void Link::wait(const Message& message, const base::Deadline& deadline) {
  try {
    if (watch_->wait(message, deadline)) return;
  } catch (const std::exception&) {
    throw failure(message.peer);
  }
  throw blame_connections(message.peer);
}

void Link::wait(const std::vector<Message>& messages, const base::Deadline& deadline) {
  for (const Message& message : messages) {
    awaited_ = message.peer;
    wait(message, deadline);
  }
  awaited_ = -1;
}

void Link::all_reduce(const at::Tensor& tensor, const base::Deadline& deadline) {
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
  is_stuck_ = true;
  throw blame_connections(-1);
}

bool Link::wait_collective(c10d::Work& work) {
  std::optional<base::Deadline> patience;
  while (true) {
    try {
      work.wait(kLookAround);
      return true;
    } catch (const std::exception&) {
      if (work.isCompleted()) return work.wait();  // or throws why it failed
    }
    // A peer that has all it needs may end before this rank has all.
    if (!patience && !watch_->closed_peers().empty()) patience.emplace(kPatience);
    if (patience && patience->passed()) return false;
  }
}

TransportFailure Link::failure(std::int64_t peer) {
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
  if (text.find("Timed out") == std::string::npos) return blame_connections(peer);
  std::vector<std::int64_t> late;
  if (peer >= 0) late.push_back(peer);
  return {Cause::no_answer, late};
}

TransportFailure Link::blame_connections(std::int64_t peer) {
  std::vector<std::int64_t> gone = watch_->closed_peers();
  if (gone.empty() && peer >= 0) gone.push_back(peer);
  std::set<std::int64_t> culprits;
  for (const auto messenger : gone) {
    const auto note = note_from(messenger).value_or(-1);
    culprits.insert(note >= 0 && note != rank() ? note : messenger);
  }
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return {TransportFailure::Cause::closed, {}, reason_};
    if (culprit_ < 0 && !culprits.empty()) culprit_ = *culprits.begin();
  }
  send_notes();
  return {TransportFailure::Cause::gone, {culprits.begin(), culprits.end()}};
}

std::optional<std::int64_t> Link::note_from(std::int64_t peer) {
  if (!trusts_peers_) return std::nullopt;
  const auto index = static_cast<std::size_t>(peer);
  const std::lock_guard lock(close_mutex_);
  if (note_recvs_[index].work) {
    try {
      note_recvs_[index].work->wait(kMoment);  // the connection is closed
      note_recvs_[index].work.reset();
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }
  return notes_[index];
}

void Link::close(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (closed_) return;
    closed_ = true;
    reason_ = reason;
  }
  send_notes();
  cut_connections();
}

void Link::send_notes() noexcept {
  {
    const std::lock_guard lock(close_mutex_);
    if (std::exchange(has_sent_notes_, true)) return;
  }
  std::vector<Message> notes;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      notes.push_back(
          send(reinterpret_cast<const std::byte*>(&culprit_), sizeof culprit_, peer, Tag::note));
    } catch (const std::exception&) {
      // Gone: it needs no note.
    }
  }
  for (const Message& note : notes) {
    try {
      note.work->wait(kNotePatience);
    } catch (const std::exception&) {
      // Gone meanwhile, or too slow, which has cut all connections.
    }
  }
}

void Link::cut_connections() noexcept {
  // gloo has no call to cut its connections, but a wait that times out does just that, and lets
  // everyone who waits here or on the other side know.
  std::int64_t nothing = 0;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    try {
      post_recv(reinterpret_cast<std::byte*>(&nothing), sizeof nothing, peer, Tag::never)
          .work->wait(kMoment);
    } catch (const std::exception&) {
      // Either this peer's connection was closed before, or all are now; another round is harmless.
    }
  }
}

}  // namespace dtrain::comm
