#include "cuda/check.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <cstdint>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::cuda {
namespace {

constexpr const char* kInstall = "scripts/setup.sh --cuda installs the matching version";

// Returns the path of the library that defines a function.
template <typename Function>
std::string file_of(Function* function) {
  Dl_info info;
  const bool is_found = ::dladdr(reinterpret_cast<const void*>(function), &info) != 0;
  return is_found && info.dli_fname != nullptr ? info.dli_fname : "an unknown file";
}

std::string cuda_text(long version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nccl_text(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code % 10000 / 100, code % 100);
}

void check_cuda() {
  int loaded = 0;
  check(cudaRuntimeGetVersion(&loaded), "querying the version of libcudart.so.13");
  const long torch = at::detail::getCUDAHooks().versionCUDART();
  if (loaded / 1000 == CUDART_VERSION / 1000 && torch / 1000 == CUDART_VERSION / 1000 &&
      loaded >= CUDART_VERSION) {
    return;
  }
  base::fail(base::ErrorKind::device,
             "the CUDA runtime in {} is {}, but LibTorch was built with {} and "
             "libdtrain_cuda.so with {}; {}",
             file_of(&cudaRuntimeGetVersion), cuda_text(loaded), cuda_text(torch),
             cuda_text(CUDART_VERSION), kInstall);
}

void check_nccl() {
  int loaded = 0;
  ncclGetVersion(&loaded);
  const std::uint64_t packed = torch::cuda::nccl::version();  // 16 bits a part, after 32
  const int torch =
      static_cast<int>((packed >> 32) * 10000 + (packed >> 16 & 0xFFFF) * 100 + (packed & 0xFFFF));
  if (loaded == NCCL_VERSION_CODE && torch == NCCL_VERSION_CODE) return;
  base::fail(base::ErrorKind::device,
             "the NCCL in {} is {}, but LibTorch was built with {} and "
             "libdtrain_cuda.so with {}; {}",
             file_of(&ncclGetVersion), nccl_text(loaded), nccl_text(torch),
             nccl_text(NCCL_VERSION_CODE), kInstall);
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  base::fail(
      status == cudaErrorMemoryAllocation ? base::ErrorKind::memory : base::ErrorKind::device,
      "CUDA: {}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

void check_versions() {
  check_cuda();
  check_nccl();
}

void check_driver() {
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "querying the driver's version");
  if (driver == 0) {
    base::fail(base::ErrorKind::device,
               "this machine has no NVIDIA driver (libcuda.so.1); use --device cpu to "
               "train without one");
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    base::fail(base::ErrorKind::device,
               "the NVIDIA driver supports CUDA up to {}, but this build needs {}; "
               "update the driver",
               cuda_text(driver), cuda_text(CUDART_VERSION));
  }
}

}  // namespace dtrain::cuda
