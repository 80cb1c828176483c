// A launched kernel, and CPU tensors that alias its device tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <unordered_map>
#include <vector>

#include "support/fake_device/memory.h"
#include "support/fake_device/operators/access.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {

[[nodiscard]] inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

/// Maps the device tensors of one kernel to CPU tensors and back. Tensors that share a storage on
/// one side also share one on the other.
///
/// Threads: one.
class Aliases {
 public:
  /// Returns a CPU tensor over the same bytes, in the kernels' address window. It keeps the memory
  /// alive, but not the tensor: the host may free a tensor that a queued kernel still uses.
  [[nodiscard]] at::Tensor to_host(const at::Tensor& tensor);
  /// Returns the device tensor of a CPU tensor on a storage of to_host(); otherwise undefined.
  [[nodiscard]] at::Tensor to_device(const at::Tensor& tensor) const;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> hosts_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> devices_;
};

/// One launched kernel. The constructor takes a ticket in its stream and checks for races. Call
/// either run() or defer(), once; otherwise the kernel counts as run when this object is destroyed.
///
/// Throws:  the constructor: AcceleratorError if the device is lost; c10::Error in a capture
///          (graph.h).
/// Threads: one.
class LaunchedKernel {
 public:
  /// name: a string literal, or owned by the dispatcher.
  LaunchedKernel(StreamNumber stream, const char* name, const std::vector<Access>& accesses);
  LaunchedKernel(const LaunchedKernel&) = delete;
  LaunchedKernel& operator=(const LaunchedKernel&) = delete;
  ~LaunchedKernel();

  /// Runs the kernel in the calling thread, after the kernels that it waits for.
  void run(const std::function<void()>& kernel);
  /// Runs the kernel later, on the stream's thread.
  void defer(Streams::Task task);
  /// Adds the kernel's write to a new tensor.
  void wrote(const at::Tensor& tensor);

  [[nodiscard]] Epoch epoch() const { return {ticket_.stream, ticket_.tick, name_}; }
  [[nodiscard]] Clock after() const { return ticket_.after(); }

 private:
  void end();

  const char* name_;
  Ticket ticket_;
  bool has_ended_ = false;
};

}  // namespace dtrain::testing::fake
