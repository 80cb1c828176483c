#include "dtrain/param/offload_memory.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtrain::param {

const at::Tensor& Fetched::wait() const {
  if (arrival == nullptr) return values;
  const c10::Device device = values.device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  arrival->block(stream);
  return values;
}

}  // namespace dtrain::param
