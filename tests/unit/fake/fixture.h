// Test fixture for the fake device.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <vector>

#include "support/fake_device/counters.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/faults.h"
#include "support/fake_device/memory.h"

namespace dtrain::testing::fake {

inline const c10::Device kDevice(kType, 0);

inline at::TensorOptions on_device(c10::DeviceIndex index = 0) {
  return at::TensorOptions(c10::Device(kType, index)).dtype(at::kFloat);
}

inline c10::impl::VirtualGuardImpl streams_of_device() {
  return c10::impl::VirtualGuardImpl(kType);
}

/// Puts the devices in a known state: installed, idle, working, counters zero, backward on the caller's
/// thread. Checks at the end that the test has taken all races.
class Fixture {
 public:
  explicit Fixture(Execution execution = Execution::prompt, std::uint64_t seed = 1) {
    install();
    report_stray_accesses();  // in place of the test framework's handler
    set_options({.execution = execution, .seed = seed});
    (void)take_races();
    for (c10::DeviceIndex device = 0; device < kDevices; ++device) reset_counters(device);
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;
  ~Fixture() { CHECK(take_races() == std::vector<std::string>{}); }
};

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.contiguous();
  const at::Tensor b = expected.contiguous();
  REQUIRE(a.sizes() == b.sizes());
  REQUIRE(a.dtype() == b.dtype());
  CHECK(std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

/// Layer norm with float32 statistics for 16-bit inputs: the CPU needs float32 weights for them,
/// a GPU without weights.
inline at::Tensor layer_norm(const at::Tensor& x) {
  const bool needs_ones = x.is_cpu() && at::isReducedFloatingType(x.scalar_type());
  const at::Tensor ones = needs_ones ? at::ones({x.size(-1)}, at::kFloat) : at::Tensor();
  return at::layer_norm(x, {x.size(-1)}, ones, {}, 1e-5);
}

/// Orders a stream after everything launched on another.
inline void wait_for(const c10::Stream& waiting, const c10::Stream& awaited) {
  c10::Event event(kType);
  event.record(awaited);
  waiting.wait(event);
}

}  // namespace dtrain::testing::fake
