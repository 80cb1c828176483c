#include "support/fake_device/hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "support/fake_device/current.h"
#include "support/fake_device/device_memory.h"
#include "support/fake_device/pinned.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchangeDevice(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchange_current_device(device);
  }
  bool isPinnedPtr(const void* data) const override {
    const BlockPtr block = memory().find(data);
    return block && block->place == Place::pinned;
  }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  c10::Device getDeviceFromPtr(void* data) const override {
    const BlockPtr block = memory().find(data);
    TORCH_CHECK(block && block->place == Place::device, "no address of a fake device");
    return {kType, block->device};
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const auto* const made = new at::Generator(at::detail::createCPUGenerator());
    return *made;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    resize(storage, bytes);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace dtrain::testing::fake
