#include "dtrain/device/out_of_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::device {
namespace {

// What was wanted and what the device has, without LibTorch's own advice.
std::string request_in(const c10::Error& error) {
  const std::string all = error.what_without_backtrace();
  const std::string text = all.substr(0, all.find('\n'));
  const std::size_t begin = text.find("Tried to allocate");
  if (begin == text.npos) return text;
  const std::size_t end = std::min(text.find(" If reserved"), text.size());
  return text.substr(begin, end - begin);
}

[[noreturn]] void fail_for_memory(c10::Device device, const std::string& part,
                                  const c10::Error& error) {
  const auto held =
      c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[0];
  base::fail(base::ErrorKind::memory,
             "out of memory on {} {}: {} Tensors of this process hold {} bytes, {} at the most; "
             "use --recompute level, a smaller --microbatch (more --grad-accum makes up for it), "
             "--seq-len or model, --offload all, more ranks that share it (--strategy fsdp), or a "
             "larger --memory-limit",
             device.str(), part, request_in(error), held.current, held.peak);
}

}  // namespace

void run_on(c10::Device device, const std::function<std::string()>& part,
            const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    if (device.is_cpu()) throw;
    fail_for_memory(device, part(), error);
  }
}

}  // namespace dtrain::device
