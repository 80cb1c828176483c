// Notices closed connections that gloo misses. Private to comm/gloo.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "dtrain/base/deadline.h"
#include "dtrain/comm/gloo/message.h"

namespace dtrain::comm {

/// When a connection closes, gloo fails the messages that wait for their turn, but not one that is
/// halfway through, whose receiver would wait for the deadline. So a thread checks every 50 ms the
/// connections over which a rank waits, and their deadlines: gloo's own timeouts would count time
/// that this process spends stopped.
///
/// Threads: any.
class CloseWatch {
 public:
  /// `never`: by peer, a receive of a message that nobody sends; no work for this rank itself.
  explicit CloseWatch(std::vector<Message> never);
  ~CloseWatch();
  CloseWatch(const CloseWatch&) = delete;
  CloseWatch& operator=(const CloseWatch&) = delete;

  /// The peers whose connections are closed.
  [[nodiscard]] std::vector<std::int64_t> closed_peers();

  /// Waits until the message has come or gone. False: its connection was closed before.
  ///
  /// Throws: what gloo throws, at the deadline too.
  [[nodiscard]] bool wait(const Message& message, const base::Deadline& deadline);

 private:
  struct Wait {
    const Message* message;
    const base::Deadline* deadline;
  };

  void run();
  /// The same, but the message may have come where it returns false.
  bool wait_for_word(const Message& message, const base::Deadline& deadline);
  [[nodiscard]] bool is_closed(std::int64_t peer);

  std::mutex mutex_;
  std::vector<Message> never_;
  std::list<Wait> waits_;
  bool is_stopping_ = false;
  std::condition_variable stopping_;
  std::thread thread_;
};

}  // namespace dtrain::comm
