#include "support/fake_device/faults.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "support/fake_device/counters.h"
#include "support/fake_device/fake_device.h"

namespace dtrain::testing::fake {
namespace {

constexpr std::int64_t kNever = -1;
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

struct Plan {
  std::atomic<std::size_t> memory_limit = kNoLimit;
  std::atomic<std::int64_t> launches_left = kNever;  // 0: lost
  std::atomic<int> error_code = kUncorrectable;
};

Plan& plan_of(c10::DeviceIndex device) {
  static auto* const made = new std::array<Plan, kDevices>;
  return made->at(static_cast<std::size_t>(device));
}

const char* error_text(int error_code) {
  switch (error_code) {
    case kMemoryAllocation:
      return "out of memory";
    case kUncorrectable:
      return "uncorrectable ECC error encountered";
    default:
      return "an illegal memory access was encountered";
  }
}

}  // namespace

void limit_memory(c10::DeviceIndex device, std::optional<std::size_t> bytes) {
  plan_of(device).memory_limit = bytes.value_or(kNoLimit);
}

std::optional<std::size_t> free_memory(c10::DeviceIndex device) {
  const std::size_t limit = plan_of(device).memory_limit;
  if (limit == kNoLimit) return std::nullopt;
  return limit - std::min(limit, counters(device).bytes);
}

void lose_device_after(c10::DeviceIndex device, std::optional<std::uint64_t> kernels,
                       int error_code) {
  plan_of(device).error_code = error_code;
  plan_of(device).launches_left = kernels ? static_cast<std::int64_t>(*kernels) : kNever;
}

bool is_lost(c10::DeviceIndex device) { return plan_of(device).launches_left == 0; }

void check_device(c10::DeviceIndex device) {
  if (!is_lost(device)) return;
  const int code = plan_of(device).error_code;
  throw c10::AcceleratorError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)}, code,
                              c10::str("fake error: ", error_text(code), " on fake:", int{device},
                                       "\nAsynchronous errors ..."));
}

void check_launch(c10::DeviceIndex device) {
  check_device(device);
  std::atomic<std::int64_t>& left = plan_of(device).launches_left;
  std::int64_t before = left;
  while (before > 0 && !left.compare_exchange_weak(before, before - 1)) {
  }
}

void check_memory(c10::DeviceIndex device, std::size_t held, std::size_t wanted) {
  const std::size_t limit = plan_of(device).memory_limit;
  TORCH_CHECK_WITH(OutOfMemoryError, limit == kNoLimit || held + wanted <= limit,
                   "fake device out of memory. Tried to allocate ", wanted,
                   " bytes. fake:", int{device}, " has a capacity of ", limit, " bytes, of which ",
                   held, " are in use.");
}

}  // namespace dtrain::testing::fake
