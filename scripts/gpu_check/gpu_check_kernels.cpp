// A library that CUDA loads into a program: what ran on its GPUs, and how often the host waited.
//
// LD_PRELOAD and CUDA_INJECTION64_PATH name it, GPU_CHECK_KERNELS the file that it writes when the
// program ends: {"kernels": {NAME: [CALLS, SECONDS]}, "copy_seconds": S, "waits": N}.
#include <cupti.h>
#include <cxxabi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace {

struct Calls {
  std::int64_t count = 0;
  std::uint64_t nanoseconds = 0;
};

struct Totals {
  std::mutex mutex;
  std::map<std::string, Calls> kernels;
  std::uint64_t copy_nanoseconds = 0;
  std::int64_t waits = 0;
};

// Never destroyed: CUPTI's thread outlives main().
Totals& totals() {
  static auto* all = new Totals;
  return *all;
}

constexpr double kSecond = 1e-9;          // of a nanosecond
constexpr std::size_t kBuffer = 8 << 20;  // bytes
constexpr std::size_t kAlignment = 8;     // bytes, which CUPTI asks for

void add_kernel(const CUpti_ActivityKernel10& kernel) {
  Calls& calls = totals().kernels[kernel.name != nullptr ? kernel.name : "?"];
  ++calls.count;
  calls.nanoseconds += kernel.end - kernel.start;
}

void add_wait(const CUpti_ActivitySynchronization2& wait) {
  // One stream that waits for another keeps no host.
  if (wait.type != CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT) ++totals().waits;
}

void add(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return add_kernel(reinterpret_cast<const CUpti_ActivityKernel10&>(record));
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return add_wait(reinterpret_cast<const CUpti_ActivitySynchronization2&>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      totals().copy_nanoseconds += copy.end - copy.start;
      return;
    }
    default:
      return;
  }
}

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBuffer));
  *size = *buffer != nullptr ? kBuffer : 0;
  *most_records = 0;  // as many as fit
}

void take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t size) {
  {
    const std::lock_guard lock(totals().mutex);
    CUpti_Activity* record = nullptr;
    while (size > 0 && cuptiActivityGetNextRecord(buffer, size, &record) == CUPTI_SUCCESS) {
      add(*record);
    }
  }
  std::free(buffer);
}

std::string readable(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  for (char& c : result) {
    if (c == '"' || c == '\\') c = '\'';
  }
  return result;
}

void write_totals() {
  const char* path = std::getenv("GPU_CHECK_KERNELS");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  const std::lock_guard lock(totals().mutex);
  std::fputs("{\"kernels\": {", file);
  const char* comma = "";
  for (const auto& [name, calls] : totals().kernels) {
    std::fprintf(file, "%s\"%s\": [%lld, %.9f]", comma, readable(name).c_str(),
                 static_cast<long long>(calls.count),
                 static_cast<double>(calls.nanoseconds) * kSecond);
    comma = ", ";
  }
  std::fprintf(file, "}, \"copy_seconds\": %.9f, \"waits\": %lld}\n",
               static_cast<double>(totals().copy_nanoseconds) * kSecond,
               static_cast<long long>(totals().waits));
  std::fclose(file);
}

bool is_recording = false;

}  // namespace

// CUDA calls it when the program first uses a GPU.
extern "C" int InitializeInjection() {
  is_recording = cuptiActivityRegisterCallbacks(give_buffer, take_buffer) == CUPTI_SUCCESS &&
                 cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS &&
                 cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) == CUPTI_SUCCESS &&
                 cuptiActivityEnable(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION) == CUPTI_SUCCESS;
  return is_recording ? 1 : 0;
}

// In place of the C library's: dtrain ends without the handlers of exit().
extern "C" [[noreturn]] void _exit(int status) {
  if (is_recording) {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    write_totals();
  }
  ::syscall(SYS_exit_group, status);
  __builtin_unreachable();
}
