#include "dtrain/device/synchronize.h"

#include <c10/core/impl/VirtualGuardImpl.h>

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

}  // namespace dtrain::device
