#include "cuda/graph.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <utility>

namespace dtrain::cuda {
namespace {

class CudaGraph final : public device::Graph {
 public:
  explicit CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}

  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

class CudaRecorder final : public device::GraphRecorder {
 public:
  explicit CudaRecorder(c10::Device device)
      : pool_(at::cuda::graph_pool_handle()),
        stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {}

  [[nodiscard]] std::unique_ptr<device::Graph> record(const std::function<void()>& work) override {
    at::cuda::CUDAEvent before;
    before.record(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    before.block(stream_);
    const c10::cuda::CUDAStreamGuard on(stream_);
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    graph->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      const std::exception_ptr cause = std::current_exception();
      try {
        graph->capture_end();  // the stream and the allocator leave the capture
      } catch (const c10::Error&) {
        // The capture is invalid because of what `cause` tells.
      }
      std::rethrow_exception(cause);
    }
    graph->capture_end();
    return std::make_unique<CudaGraph>(std::move(graph));
  }

 private:
  c10::cuda::MempoolId_t pool_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

std::unique_ptr<device::GraphRecorder> make_graph_recorder(c10::Device device) {
  return std::make_unique<CudaRecorder>(device);
}

}  // namespace dtrain::cuda
