// Device graphs: kernels that are captured once and replayed as a whole.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace dtrain::device {

/// A captured sequence of kernels. Addresses and host values are fixed at capture; whatever changes
/// between replays must be read from device memory.
///
/// Threads: one, the one that recorded it.
class Graph {
 public:
  virtual ~Graph() = default;

  /// Async: enqueues the kernels on the calling thread's current stream.
  virtual void replay() = 0;
};

/// Captures graphs that share one memory pool. Replay them in the order of capture, because a later
/// graph may reuse the memory of an earlier one's freed tensors.
///
/// Threads: one.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;

  /// Runs `work` on the host while the device captures its kernels instead of executing them. The
  /// memory of tensors that `work` creates lives as long as the graph, even after they are freed.
  ///
  /// Throws:  what `work` throws; c10::Error if it makes the host wait for the device.
  [[nodiscard]] virtual std::unique_ptr<Graph> record(const std::function<void()>& work) = 0;
};

using MakeRecorder = std::unique_ptr<GraphRecorder> (*)(c10::Device device);

/// Registers the recorder of a device type; called by plugins whose devices support graphs.
///
/// Threads: any.
void register_recorder(c10::DeviceType type, MakeRecorder make);

/// Throws:  Error{usage} if devices of this type do not support graphs.
/// Threads: any.
[[nodiscard]] std::unique_ptr<GraphRecorder> make_recorder(c10::Device device);

/// Returns a tensor over the same memory that does not keep it alive: for a graph's outputs, which
/// are valid until the next graph of its recorder runs. on_release: called with `context` when its
/// last view is destroyed.
[[nodiscard]] at::Tensor non_owning_view(const at::Tensor& tensor, void* context = nullptr,
                                         c10::DeleterFnPtr on_release = nullptr);

}  // namespace dtrain::device
