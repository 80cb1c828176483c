#include "dtrain/device/plugin.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "cuda/check.h"
#include "cuda/nccl_world.h"
#include "cuda/versions.h"

namespace dtrain::cuda {
namespace {

class CudaPlugin final : public device::Plugin {
 public:
  [[nodiscard]] c10::DeviceType type() const override { return c10::kCUDA; }

  [[nodiscard]] std::int64_t count() override {
    check_versions();
    check_driver();
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status == cudaErrorNoDevice) {
      cudaGetLastError();  // it is no failure, and must not be found as one later
      return 0;
    }
    check(status, "counting the GPUs");
    return devices;
  }

  [[nodiscard]] std::string describe(c10::Device device) override {
    cudaDeviceProp found{};
    check(cudaGetDeviceProperties(&found, device.index()), "describing a GPU");
    return fmt::format("{}, {:.1f} GiB", found.name,
                       static_cast<double>(found.totalGlobalMem) / (1024.0 * 1024.0 * 1024.0));
  }

  void use(c10::Device device) override {
    check(cudaSetDevice(device.index()), "taking a GPU");
    c10::cuda::set_device(device.index());
    at::globalContext().lazyInitDevice(c10::kCUDA);
  }

  // The allocator knows fractions of the GPU alone.
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

dtrain::device::Plugin& dtrain_device_plugin() {
  static dtrain::cuda::CudaPlugin plugin;
  return plugin;
}
