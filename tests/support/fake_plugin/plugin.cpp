// The plugin of --device fake. DTRAIN_FAKE says how its kernels run: "late" or "prompt", which is
// the default; a race ends the process either way.
#include "dtrain/device/plugin.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "support/fake_device/fake_device.h"
#include "support/fake_plugin/fake_world.h"

namespace dtrain::testing {
namespace {

class FakePlugin final : public device::Plugin {
 public:
  FakePlugin() {
    fake::install();
    const char* asked = std::getenv("DTRAIN_FAKE");
    const bool is_late = asked != nullptr && std::string_view(asked) == "late";
    fake::set_options({.execution = is_late ? fake::Execution::late : fake::Execution::prompt,
                       .races_are_errors = true});
  }

  c10::DeviceType type() const override { return fake::kType; }
  std::int64_t count() override { return fake::kDevices; }
  std::string describe(c10::Device) override { return "a fake accelerator for tests"; }
  std::string identity(c10::Device device) override { return device.str(); }
  void use(c10::Device device) override {
    c10::impl::VirtualGuardImpl(fake::kType).setDevice(device);
  }
  std::shared_ptr<comm::World> make_world(std::shared_ptr<comm::World> host, c10::Device device,
                                          const comm::GroupOptions&) override {
    return make_fake_world(std::move(host), device);
  }
};

}  // namespace
}  // namespace dtrain::testing

dtrain::device::Plugin& dtrain_device_plugin() {
  static dtrain::testing::FakePlugin plugin;
  return plugin;
}
