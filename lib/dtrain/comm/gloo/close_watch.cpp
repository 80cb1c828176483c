#include "dtrain/comm/gloo/close_watch.h"

#include <chrono>
#include <exception>
#include <utility>

namespace dtrain::comm {

namespace {

constexpr std::chrono::milliseconds kLookAround(50);
constexpr std::chrono::milliseconds kMoment(1);
constexpr std::chrono::hours kForGood(24 * 365);  // gloo takes 0 for its own limit

}  // namespace

CloseWatch::CloseWatch(std::vector<Message> never) : never_(std::move(never)) {
  thread_ = std::thread([this] { run(); });
}

CloseWatch::~CloseWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopping_.notify_one();
  thread_.join();
}

void CloseWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kLookAround, [this] { return is_stopping_; })) {
    for (const auto& [message, deadline] : waits_) {
      if (deadline->passed() || is_closed(message->peer)) message->work->abort();
    }
  }
}

bool CloseWatch::is_closed(std::int64_t peer) {
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

std::vector<std::int64_t> CloseWatch::closed_peers() {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> closed;
  for (std::size_t peer = 0; peer < never_.size(); ++peer) {
    if (is_closed(static_cast<std::int64_t>(peer))) {
      closed.push_back(static_cast<std::int64_t>(peer));
    }
  }
  return closed;
}

bool CloseWatch::wait(const Message& message, const base::Deadline& deadline) {
  if (wait_for_word(message, deadline)) return true;
  // gloo prefers the watch's word to a message that has come; freed of late words, a second wait
  // tells. (One that times out would close all connections.)
  message.work->abort();
  message.work->wait(kLookAround);
  if (deadline.passed()) return message.work->wait(kMoment);  // times out, and closes them
  return wait_for_word(message, deadline);
}

bool CloseWatch::wait_for_word(const Message& message, const base::Deadline& deadline) {
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

}  // namespace dtrain::comm
