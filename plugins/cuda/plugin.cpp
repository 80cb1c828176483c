#include "dtrain/device/plugin.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cuda/check.h"
#include "cuda/launch.h"
#include "cuda/nccl/nccl_world.h"
#include "dtrain/base/error.h"
#include "dtrain/device/graph.h"

namespace dtrain::cuda {
namespace {

class CudaGraph final : public device::Graph {
 public:
  explicit CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph) : graph_(std::move(graph)) {}

  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

// Captures on a stream from LibTorch's pool, because CUDA cannot capture the default stream; other
// threads may continue to call CUDA. Graphs of one recorder share a memory pool.
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
        // The capture is invalid because of `cause`.
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

cudaDeviceProp properties_of(c10::Device device) {
  cudaDeviceProp found{};
  check(cudaGetDeviceProperties(&found, device.index()), "querying a GPU's properties");
  return found;
}

// Returns 0; throws if CUDA_VISIBLE_DEVICES hides the GPUs.
std::int64_t no_device() {
  cudaGetLastError();  // clears the status, which is no failure here
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");  // a setting of CUDA's, not of ours
  if (visible == nullptr) return 0;
  base::fail(base::ErrorKind::device,
             "this process sees no GPU: CUDA_VISIBLE_DEVICES is '{}'; unset it or name a GPU",
             visible);
}

class CudaPlugin final : public device::Plugin {
 public:
  CudaPlugin() {
    device::register_recorder(c10::kCUDA,
                              [](c10::Device device) -> std::unique_ptr<device::GraphRecorder> {
                                return std::make_unique<CudaRecorder>(device);
                              });
  }

  [[nodiscard]] c10::DeviceType type() const override { return c10::kCUDA; }

  [[nodiscard]] std::int64_t count() override {
    check_versions();
    check_driver();
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorNoDevice) return no_device();
    check(status, "counting the GPUs");
    return devices;
  }

  [[nodiscard]] std::string describe(c10::Device device) override {
    const cudaDeviceProp found = properties_of(device);
    return fmt::format("{}, {:.1f} GiB", found.name,
                       static_cast<double>(found.totalGlobalMem) / (1024.0 * 1024.0 * 1024.0));
  }

  // NCCL's identity of a GPU: its UUID, and the machine as named by NCCL_HOSTID.
  [[nodiscard]] std::string identity(c10::Device device) override {
    const cudaDeviceProp found = properties_of(device);
    std::string text = "GPU-";
    for (std::size_t i = 0; i < sizeof(found.uuid.bytes); ++i) {  // as nvidia-smi writes it
      const bool begins_part = i == 4 || i == 6 || i == 8 || i == 10;
      text += fmt::format("{}{:02x}", begins_part ? "-" : "",
                          static_cast<unsigned char>(found.uuid.bytes[i]));
    }
    const char* host = std::getenv("NCCL_HOSTID");  // a setting of NCCL's, not of ours
    return text + (host != nullptr ? fmt::format(" of {}", host) : "");
  }

  [[nodiscard]] device::Failure failure_of(int error_code) const override {
    switch (error_code) {
      case cudaErrorMemoryAllocation:
        return device::Failure::out_of_memory;
      case cudaErrorDevicesUnavailable:
      case cudaErrorNoDevice:
      case cudaErrorECCUncorrectable:
      case cudaErrorNvlinkUncorrectable:
      case cudaErrorContained:           // memory that was corrupt, within this process
      case cudaErrorContextIsDestroyed:  // by a reset
      case cudaErrorExternalDevice:
        return device::Failure::device_lost;
      default:
        return device::Failure::other;
    }
  }

  void use(c10::Device device) override {
    check(cudaSetDevice(device.index()), "selecting a GPU");
    c10::cuda::set_device(device.index());
    if (!has_kernels()) {
      const cudaDeviceProp found = properties_of(device);
      base::fail(base::ErrorKind::device,
                 "this build has no kernels for {} (compute capability {}.{}); extend "
                 "DTRAIN_CUDA_ARCHITECTURES and rebuild",
                 found.name, found.major, found.minor);
    }
    at::globalContext().lazyInitDevice(c10::kCUDA);
  }

  [[nodiscard]] std::optional<std::int64_t> free_memory(c10::Device device) override {
    const c10::cuda::CUDAGuard guard(device);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "reading a GPU's free memory");
    return static_cast<std::int64_t>(free);
  }

  // The allocator only supports a limit as a fraction of the GPU's memory.
  void limit_memory(c10::Device device, std::int64_t bytes) override {
    cudaDeviceProp found{};
    check(cudaGetDeviceProperties(&found, device.index()), "limiting a GPU's memory");
    const double part = static_cast<double>(bytes) / static_cast<double>(found.totalGlobalMem);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(1.0, part), device.index());
  }

  [[nodiscard]] std::shared_ptr<comm::World> make_world(
      std::shared_ptr<comm::World> host, c10::Device device,
      const comm::GroupOptions& options) override {
    return make_nccl_world(std::move(host), device, options);
  }
};

}  // namespace
}  // namespace dtrain::cuda

dtrain::device::Plugin& dtrain_device_plugin_2() {
  static dtrain::cuda::CudaPlugin plugin;
  return plugin;
}
