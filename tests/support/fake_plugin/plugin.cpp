// The plugin of --device fake. DTRAIN_FAKE holds settings of dtrain_fake_device_open, "late" for
// one; a race ends the process in any case.
#include "dtrain/device/plugin.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/faults.h"
#include "support/fake_plugin/fake_world.h"

namespace dtrain::testing {
namespace {

// A fake device multiplies as the CPU does; a GPU with these settings would not.
void require_wide_sums() {
  const auto is_wide = [](at::CuBLASReductionOption option) {
    return option != at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK;
  };
  const at::Context& context = at::globalContext();
  if (is_wide(context.allowBF16ReductionCuBLAS()) && is_wide(context.allowFP16ReductionCuBLAS())) {
    return;
  }
  base::fail(base::ErrorKind::internal, "cuBLAS may add partial sums in 16 bits");
}

class FakePlugin final : public device::Plugin {
 public:
  FakePlugin() {
    const char* asked = std::getenv("DTRAIN_FAKE");
    const std::string settings = std::string("races-are-errors ") + (asked == nullptr ? "" : asked);
    const char* error = dtrain_fake_device_open(settings.c_str());
    if (error != nullptr) base::fail(base::ErrorKind::device, "DTRAIN_FAKE: {}", error);
  }

  c10::DeviceType type() const override { return fake::kType; }
  std::int64_t count() override { return fake::kDevices; }
  std::string describe(c10::Device) override {
    // What CUDA and NCCL would be told.
    std::string text = "a fake accelerator for tests";
    for (const char* name :
         {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING", "NCCL_SOCKET_IFNAME"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) text += std::string(", ") + name + "=" + value;
    }
    return text;
  }
  std::string identity(c10::Device device) override { return device.str(); }
  device::Failure failure_of(int error_code) const override {
    return error_code == fake::kUncorrectable      ? device::Failure::device_lost
           : error_code == fake::kMemoryAllocation ? device::Failure::out_of_memory
                                                   : device::Failure::other;
  }
  void use(c10::Device device) override {
    require_wide_sums();
    c10::impl::VirtualGuardImpl(fake::kType).setDevice(device);
  }
  std::optional<std::int64_t> free_memory(c10::Device device) override {
    const auto left = fake::free_memory(device.index());
    return left ? std::optional(static_cast<std::int64_t>(*left)) : std::nullopt;
  }
  void limit_memory(c10::Device device, std::int64_t bytes) override {
    fake::limit_memory(device.index(), static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<comm::World> make_world(std::shared_ptr<comm::World> host, c10::Device device,
                                          const comm::GroupOptions&) override {
    return make_fake_world(std::move(host), device);
  }
};

}  // namespace
}  // namespace dtrain::testing

dtrain::device::Plugin& dtrain_device_plugin_2() {
  static dtrain::testing::FakePlugin plugin;
  return plugin;
}
