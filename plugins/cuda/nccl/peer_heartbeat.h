// Detects by heartbeats that another rank has aborted or died, which NCCL does not report.
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

/// A heartbeat around the ring of ranks, over a CPU process group: each rank periodically sends
/// `alive` to the next rank, and `farewell` when its PeerHeartbeat is destroyed. If a rank dies or
/// aborts the group, on_end is called on all ranks.
///
/// Throws:  nothing.
/// Threads: on_end is called in the heartbeat thread, at most once.
class PeerHeartbeat {
 public:
  /// ranks: a dedicated group of several ranks. timeout: of its calls.
  PeerHeartbeat(std::shared_ptr<comm::ProcessGroup> ranks, std::chrono::milliseconds timeout,
                std::function<void(std::exception_ptr)> on_end);
  /// Waits for the farewell of the previous rank; during stack unwinding, aborts the group instead.
  ~PeerHeartbeat();
  PeerHeartbeat(const PeerHeartbeat&) = delete;
  PeerHeartbeat& operator=(const PeerHeartbeat&) = delete;

 private:
  enum class Message : std::int64_t { alive, farewell };

  void run();
  [[nodiscard]] comm::Work send(Message message);
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
