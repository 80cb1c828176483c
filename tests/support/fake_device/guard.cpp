#include "support/fake_device/guard.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <memory>
#include <utility>

#include "support/fake_device/device_memory.h"
#include "support/fake_device/faults.h"
#include "support/fake_device/graph.h"
#include "support/fake_device/operators/access.h"
#include "support/fake_device/streams.h"
#include "support/fake_device/waits.h"

namespace dtrain::testing::fake {

namespace {

using Time = std::chrono::steady_clock::time_point;

struct Event {
  Clock clock;
  std::shared_ptr<Time> reached;  // of events with a time: when their stream came to them
  StreamNumber stream = 0;
  c10::DeviceIndex device = 0;
};

StreamNumber number_of(const c10::Stream& stream) { return static_cast<StreamNumber>(stream.id()); }

c10::Stream stream_of(c10::DeviceIndex device, StreamNumber number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, device),
                     static_cast<c10::StreamId>(number));
}

// The stream's next work is to look at the time.
std::shared_ptr<Time> note_time(StreamNumber stream) {
  auto reached = std::make_shared<Time>();
  const Ticket ticket = streams().take(stream);
  streams().submit(ticket, {.run = [reached] { *reached = std::chrono::steady_clock::now(); }});
  return reached;
}

// A capture is one stream's.
void refuse_other_in_capture(c10::DeviceIndex device, StreamNumber stream) {
  if (stream != current_stream(device)) refuse_in_capture("an event of another stream");
}

// Makes a device the thread's, as cudaSetDevice, which makes a context there. Returns the one
// before.
c10::DeviceIndex select(c10::DeviceIndex device) {
  const c10::DeviceIndex before = exchange_current_device(device);
  if (before != device) change_counters(device, [](Counters& all) { ++all.selections; });
  return before;
}

// An index of -1 is the current device.
c10::DeviceIndex index_of(const c10::Device& device) {
  return device.has_index() ? device.index() : current_device();
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, select(index_of(device))};
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  // As CUDA's, where it makes no context.
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    exchange_current_device(index_of(device));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(index_of(device), current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of(index_of(device), static_cast<StreamNumber>(index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    check_device(index_of(device));
    return stream_of(index_of(device), streams().create(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::DeviceIndex device = stream.device_index();
    return stream_of(device, exchange_current_stream(device, number_of(stream)));
  }
  bool queryStream(const c10::Stream& stream) const override {
    check_device(stream.device_index());
    return streams().has_run(streams().launched(number_of(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_in_capture("a wait of the host for a stream");
    streams().synchronise(streams().launched(number_of(stream)), stream.device_index(),
                          &Synchronisations::stream);
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    refuse_in_capture("a wait of the host for the device");
    streams().synchronise(streams().launched_on(device), device, &Synchronisations::device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag flag) const override {
    check_device(stream.device_index());
    refuse_other_in_capture(stream.device_index(), number_of(stream));
    if (*event == nullptr) *event = new Event;
    const bool has_time = flag == c10::EventFlag::BACKEND_DEFAULT;
    auto reached = has_time ? note_time(number_of(stream)) : nullptr;
    *static_cast<Event*>(*event) = {.clock = streams().launched(number_of(stream)),
                                    .reached = std::move(reached),
                                    .stream = number_of(stream),
                                    .device = stream.device_index()};
  }
  void block(void* event, const c10::Stream& stream) const override {
    check_device(stream.device_index());
    const Event& own = *static_cast<Event*>(event);
    refuse_other_in_capture(own.device, own.stream);
    refuse_other_in_capture(stream.device_index(), number_of(stream));
    if (!drops_wait(number_of(stream), own.clock)) {
      streams().order(number_of(stream), own.clock);
    }
  }
  bool queryEvent(void* event) const override {
    const Event& own = *static_cast<Event*>(event);
    check_device(own.device);
    refuse_in_capture("a question for an event");
    if (!streams().has_run(own.clock)) return false;
    streams().learn(own.clock);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    const Event& own = *static_cast<Event*>(event);
    refuse_in_capture("a wait of the host for an event");
    streams().synchronise(own.clock, own.device, &Synchronisations::event);
  }
  // As CUDA's, which selects the event's device and then the thread's again.
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (event == nullptr) return;
    const c10::DeviceIndex before = select(static_cast<Event*>(event)->device);
    delete static_cast<Event*>(event);
    select(before);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    const auto reached = [](void* event) { return *static_cast<Event*>(event)->reached; };
    return std::chrono::duration<double, std::milli>(reached(second) - reached(first)).count();
  }
};

}  // namespace

void register_guard() { c10::impl::registerDeviceGuard(kType, new Guard); }

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
