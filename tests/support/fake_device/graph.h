// Kernels that are recorded instead of launched, and launched again as a whole.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <vector>

#include "support/fake_device/access.h"

namespace dtrain::testing::fake {

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

  explicit Graph(c10::DeviceIndex device) : device_(device) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();

  /// Launches the kernels on the current stream, where races are looked for as in any launch.
  ///
  /// Throws:  c10::Error naming memory of a kernel that has been freed; AcceleratorError if the
  ///          device is lost.
  void replay();

  /// For the device's own code, while this is captured().
  void add(Launch launch) { launches_.push_back(std::move(launch)); }
  void keep(const BlockPtr& block);

 private:
  c10::DeviceIndex device_;
  std::vector<Launch> launches_;
  std::vector<BlockPtr> memory_;
};

/// Runs `work`, whose kernels on the device are recorded.
///
/// Throws:  what `work` throws, among it c10::Error naming what a graph cannot hold: a wait or a
///          read of the host, a copy to or from it, an event, a collective.
/// Threads: any; concerns the calling thread alone.
[[nodiscard]] std::unique_ptr<Graph> capture(c10::DeviceIndex device,
                                             const std::function<void()>& work);

/// For the device's own code: the graph that the calling thread records, or null.
[[nodiscard]] Graph* captured();
/// Throws:  c10::Error naming `what` in a capture.
void refuse_in_capture(const char* what);

}  // namespace dtrain::testing::fake
