#include "dtrain/metrics/tensor_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace dtrain::metrics {

MemoryUse memory_use(c10::Device device) {
  if (device.is_cpu()) return memory_use();
  const auto bytes = c10::getDeviceAllocator(device.type())
                         ->getDeviceStats(device.index())
                         .allocated_bytes[0];  // in pools of every kind
  return {.current = bytes.current, .peak = bytes.peak};
}

void restart_peak(c10::Device device) {
  if (device.is_cpu()) return restart_peak();
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

}  // namespace dtrain::metrics
