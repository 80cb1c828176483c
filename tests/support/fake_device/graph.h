// Kernels that are recorded instead of launched, and launched again as a whole.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/fake_device/access.h"

namespace dtrain::testing::fake {

/// Memory of captures. What a tensor of one leaves is taken by the next tensor of its size, of this
/// capture or a later one, but by nobody else. The device counts as held what lived in it at once
/// at most, as if tensors of all sizes shared it without gaps.
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
  std::size_t held_ = 0;  // bytes that lived at once
};

/// What a capture has recorded: kernels with the addresses and the host's numbers of that time.
/// Memory that was allocated in the capture stays while this exists, also when its tensors are
/// gone.
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

  /// Launches the kernels on the current stream, where races are looked for as in any launch.
  ///
  /// Throws:  c10::Error naming memory of a kernel that has been freed; AcceleratorError if the
  ///          device is lost.
  void replay();

  /// For the device's own code, while this is captured().
  void add(Launch launch) { launches_.push_back(std::move(launch)); }
  [[nodiscard]] const std::shared_ptr<GraphPool>& pool() const { return pool_; }

 private:
  c10::DeviceIndex device_;
  std::shared_ptr<GraphPool> pool_;
  std::vector<Launch> launches_;
};

/// Runs `work`, whose kernels on the device are recorded, with memory of `pool`; null: of its own.
///
/// Throws:  what `work` throws, among it c10::Error naming what a graph cannot hold: a wait or a
///          read of the host, a copy to or from it, an event, a collective.
/// Threads: any; concerns the calling thread alone.
[[nodiscard]] std::unique_ptr<Graph> capture(c10::DeviceIndex device,
                                             const std::function<void()>& work,
                                             std::shared_ptr<GraphPool> pool = nullptr);

/// For the device's own code: the graph that the calling thread records, or null.
[[nodiscard]] Graph* captured();
/// Throws:  c10::Error naming `what` in a capture.
void refuse_in_capture(const char* what);

}  // namespace dtrain::testing::fake
