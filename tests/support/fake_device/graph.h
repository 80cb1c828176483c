// Device graphs: captures kernels instead of launching them, and replays them as a whole.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/fake_device/operators/access.h"

namespace dtrain::testing::fake {

/// The memory pool of captures. Freed memory is reused only by the next tensor of that size
/// in this or a later capture. The device's counters include the peak of the pool's live bytes, as
/// if tensors of all sizes shared the pool without gaps.
///
/// Threads: any.
class GraphPool {
 public:
  explicit GraphPool(c10::DeviceIndex device) : device_(device) {}
  GraphPool(const GraphPool&) = delete;
  GraphPool& operator=(const GraphPool&) = delete;
  ~GraphPool();

  /// Throws:  c10::OutOfMemoryError (faults.h).
  [[nodiscard]] BlockPtr allocate(std::size_t bytes);
  void give_back(const BlockPtr& block);

 private:
  void count(std::size_t bytes);

  c10::DeviceIndex device_;
  std::mutex mutex_;
  std::vector<BlockPtr> all_;
  std::vector<BlockPtr> free_;
  std::size_t live_ = 0;  // bytes
  std::size_t held_ = 0;  // peak of live_
};

/// Captured kernels, with the addresses and host values at capture time. Memory that was allocated
/// in the capture stays allocated while the graph exists, even after its tensors are freed.
///
/// Threads: one.
class Graph {
 public:
  struct Launch {
    const char* name;
    std::vector<Access> accesses;
    std::function<void()> run;
  };

  Graph(c10::DeviceIndex device, std::shared_ptr<GraphPool> pool)
      : device_(device), pool_(std::move(pool)) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Launches the kernels on the current stream, with race detection as for any launch.
  ///
  /// Throws:  c10::Error naming freed memory that a kernel uses; AcceleratorError if the device is
  ///          lost.
  void replay();

  /// Adds a kernel while this is captured(); for the fake device's implementation.
  void add(Launch launch) { launches_.push_back(std::move(launch)); }
  [[nodiscard]] const std::shared_ptr<GraphPool>& pool() const { return pool_; }

 private:
  c10::DeviceIndex device_;
  std::shared_ptr<GraphPool> pool_;
  std::vector<Launch> launches_;
};

/// Runs `work` and captures its kernels, with memory from `pool`; null: a new pool.
///
/// Throws:  any exception of `work`; c10::Error naming an operation that a graph cannot contain: a
///          host wait or read, a copy to or from the host, an event, a collective.
/// Threads: any; affects the calling thread only.
[[nodiscard]] std::unique_ptr<Graph> capture(c10::DeviceIndex device,
                                             const std::function<void()>& work,
                                             std::shared_ptr<GraphPool> pool = nullptr);

/// Returns the graph that the calling thread captures; null if none. For the fake device's
/// implementation.
[[nodiscard]] Graph* captured();
/// Throws c10::Error naming `what` if the calling thread is capturing.
void refuse_in_capture(const char* what);

}  // namespace dtrain::testing::fake
