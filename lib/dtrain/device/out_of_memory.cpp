#include "dtrain/device/out_of_memory.h"

#include <algorithm>

namespace dtrain::device {
namespace {

// The requested size and the device's memory, without LibTorch's own advice.
std::string request_in(const c10::Error& error) {
  const std::string all = error.what_without_backtrace();
  const std::string text = all.substr(0, all.find('\n'));
  const std::size_t begin = text.find("Tried to allocate");
  if (begin == text.npos) return text;
  const std::size_t end = std::min(text.find(" If reserved"), text.size());
  return text.substr(begin, end - begin);
}

}  // namespace

DeviceOutOfMemory::DeviceOutOfMemory(c10::Device device, const std::string& part,
                                     const c10::OutOfMemoryError& error)
    : base::Error(base::ErrorKind::memory,
                  fmt::format("out of memory on {}{}{}: {}", device.str(), part.empty() ? "" : " ",
                              part, request_in(error))) {}

void with_oom_context(c10::Device device, const std::function<std::string()>& part,
                      const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::OutOfMemoryError& error) {
    if (device.is_cpu()) throw;
    throw DeviceOutOfMemory(device, part(), error);
  }
}

}  // namespace dtrain::device
