#include "dtrain/param/offload_memory.h"

#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtrain::param {
namespace {

c10::Stream callers_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Orders the work enqueued on `first` so far before the future work of `second`.
void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(second);
}

}  // namespace

const at::Tensor& Fetched::wait() const {
  if (arrival != nullptr) arrival->block(callers_stream(values.device()));
  return values;
}

PinnedMemory::PinnedMemory(c10::Device device)
    : copies_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {}

at::Tensor PinnedMemory::allocate(std::int64_t bytes) {
  return at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
}

Fetched PinnedMemory::fetch(const at::Tensor& part) {
  const c10::StreamGuard guard(copies_);
  Fetched fetched{.values = part.to(copies_.device(), part.scalar_type(), /*non_blocking=*/true)};
  c10::Event arrival(copies_.device_type());
  arrival.record(copies_);
  fetched.arrival = std::make_shared<const c10::Event>(std::move(arrival));
  return fetched;
}

void PinnedMemory::store(const at::Tensor& values, const at::Tensor& part) {
  order(callers_stream(device()), copies_);
  const c10::StreamGuard guard(copies_);
  part.copy_(values, /*non_blocking=*/true);
}

// The next fetch may reuse the memory of the fetched values.
void PinnedMemory::release(const at::Tensor&) { order(callers_stream(device()), copies_); }

void PinnedMemory::wait_for_transfers() { order(copies_, callers_stream(device())); }

}  // namespace dtrain::param
