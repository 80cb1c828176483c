// Work of a device that is recorded once and run again as a whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace dtrain::device {

/// Kernels in the order of their recording, with the addresses and the host's numbers of that time:
/// whatever changes from run to run they must read from the device's memory.
///
/// Threads: one, the one that recorded it.
class Graph {
 public:
  virtual ~Graph() = default;

  /// Async: puts the kernels on the calling thread's current stream.
  virtual void replay() = 0;
};

/// Makes graphs that share one memory. They must be replayed in the order of their recording, since
/// what a later one writes may lie where tensors of an earlier one have ended.
///
/// Threads: one.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;

  /// Runs `work` on the host, while the device only takes notes. The memory of tensors that it
  /// makes stays as long as the graph, also when they have ended.
  ///
  /// Throws:  what `work` throws; c10::Error where it makes the host wait for the device.
  [[nodiscard]] virtual std::unique_ptr<Graph> record(const std::function<void()>& work) = 0;
};

using MakeRecorder = std::unique_ptr<GraphRecorder> (*)(c10::Device device);

/// Called by a plugin whose devices have graphs.
///
/// Threads: any.
void register_recorder(c10::DeviceType type, MakeRecorder make);

/// Throws:  Error{usage} where devices of this type have no graphs.
/// Threads: any.
[[nodiscard]] std::unique_ptr<GraphRecorder> make_recorder(c10::Device device);

/// A tensor over the same memory that does not keep it, such as what a graph wrote, for use before
/// the next graph of its recorder runs. on_end: called with `context` when its last view has gone.
[[nodiscard]] at::Tensor borrowed(const at::Tensor& tensor, void* context = nullptr,
                                  c10::DeleterFnPtr on_end = nullptr);

}  // namespace dtrain::device
