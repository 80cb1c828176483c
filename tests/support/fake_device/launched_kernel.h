// One kernel, from its launch to its end.
#pragma once

#include <functional>
#include <vector>

#include "support/fake_device/access.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {

/// Takes a place in its stream and checks for races when it is made. Then either run() or defer(),
/// once; without them it ends with this object, as if it had run.
///
/// Throws:  construction: AcceleratorError if the device is lost; c10::Error in a capture
/// (graph.h). Threads: one.
class LaunchedKernel {
 public:
  /// `name` is a literal, or the dispatcher's.
  LaunchedKernel(StreamNumber stream, const char* name, const std::vector<Access>& accesses);
  LaunchedKernel(const LaunchedKernel&) = delete;
  LaunchedKernel& operator=(const LaunchedKernel&) = delete;
  ~LaunchedKernel();

  /// Runs it here, after the kernels that it waits for.
  void run(const std::function<void()>& kernel);
  /// Runs it later, on the stream's thread.
  void defer(Streams::Task task);
  /// It also writes this new tensor.
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
