// Notices that another rank has given up or died, which NCCL cannot tell.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "dtrain/comm/process_group.h"

namespace dtrain::cuda {

/// A ring through the hosts: each rank tells the next again and again that it is there, and
/// says farewell at its end. A rank that dies, or aborts the group, ends the watch of all.
///
/// Throws:  nothing.
/// Threads: on_end is called in the watch's own, at most once.
class PeerHeartbeat {
 public:
  /// ranks: a group of several, for nothing else. timeout: of its calls.
  PeerHeartbeat(std::shared_ptr<comm::ProcessGroup> ranks, std::chrono::milliseconds timeout,
                std::function<void(std::exception_ptr)> on_end);
  /// Waits for the farewell of the rank before this one; aborts the group instead where an
  /// exception is on its way.
  ~PeerHeartbeat();
  PeerHeartbeat(const PeerHeartbeat&) = delete;
  PeerHeartbeat& operator=(const PeerHeartbeat&) = delete;

 private:
  enum class Word : std::int64_t { alive, farewell };

  void run();
  [[nodiscard]] comm::Work say(Word word);
  [[nodiscard]] bool pause();

  const std::shared_ptr<comm::ProcessGroup> ranks_;
  const std::chrono::milliseconds period_;
  const std::function<void(std::exception_ptr)> on_end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_leaving_ = false;
  std::thread thread_;
};

}  // namespace dtrain::cuda
