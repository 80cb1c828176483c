#include "dtrain/device/synchronize.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace dtrain::device {

void synchronize(c10::Device device) {
  if (!device.is_cpu())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void synchronize_stream(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
}

Timeline::Timeline(c10::Device device)
    : device_(device), first_((synchronize(device), event_here())) {
  first_.synchronize();
  begin_ = base::Clock::now();
}

c10::Event Timeline::event_here() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

std::int64_t Timeline::mark() {
  marks_.push_back(event_here());
  return static_cast<std::int64_t>(marks_.size()) - 1;
}

std::vector<base::Clock::time_point> Timeline::times() const {
  synchronize(device_);
  std::vector<base::Clock::time_point> times;
  times.reserve(marks_.size());
  for (const c10::Event& mark : marks_) {
    const std::chrono::duration<double, std::milli> since(first_.elapsedTime(mark));
    times.push_back(begin_ + std::chrono::duration_cast<base::Clock::duration>(since));
  }
  return times;
}

}  // namespace dtrain::device
