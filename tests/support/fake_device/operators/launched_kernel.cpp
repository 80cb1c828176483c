#include "support/fake_device/operators/launched_kernel.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <utility>

#include "support/fake_device/counters.h"
#include "support/fake_device/graph.h"

namespace dtrain::testing::fake {

namespace {

c10::Storage over_same_bytes(const c10::Storage& device) {
  auto* const held = new BlockPtr(memory().find(device.data()));
  c10::DataPtr data(
      memory().for_kernels(device.mutable_data()), held,
      [](void* block) { delete static_cast<BlockPtr*>(block); }, c10::Device(c10::kCPU));
  return {c10::Storage::use_byte_size_t(), device.nbytes(), std::move(data), c10::GetCPUAllocator(),
          /*resizable=*/true};
}

at::Tensor over(const c10::Storage& storage, const at::Tensor& like, c10::DispatchKey key) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  c10::TensorImpl* const impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  return made;
}

}  // namespace

at::Tensor Aliases::to_host(const at::Tensor& tensor) {
  const c10::Storage& device = tensor.storage();
  c10::Storage& host = hosts_[device.unsafeGetStorageImpl()];
  if (!host) {
    host = over_same_bytes(device);
    devices_.emplace(host.unsafeGetStorageImpl(), device);
  }
  return over(host, tensor, c10::DispatchKey::CPU);
}

at::Tensor Aliases::to_device(const at::Tensor& tensor) const {
  const auto found = devices_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == devices_.end()) return {};
  return over(found->second, tensor, c10::DispatchKey::PrivateUse1);
}

namespace {

void check_races(const std::vector<Access>& accesses, const Epoch& kernel, const Clock& known) {
  if (auto race = find_race(accesses, kernel, known)) streams().report_race(std::move(*race));
}

}  // namespace

LaunchedKernel::LaunchedKernel(StreamNumber stream, const char* name,
                               const std::vector<Access>& accesses)
    : name_((refuse_in_capture(name), name)), ticket_(streams().take(stream)) {
  note_launch({.device = streams().device_of(stream), .kernel = epoch(), .before = ticket_.before});
  check_races(accesses, epoch(), after());
}

LaunchedKernel::~LaunchedKernel() { end(); }

void LaunchedKernel::end() {
  if (std::exchange(has_ended_, true)) return;
  streams().wait(ticket_.before);
  streams().finish(ticket_);
}

void LaunchedKernel::run(const std::function<void()>& kernel) {
  streams().wait(ticket_.before);
  streams().wait(ticket_.in_front);
  kernel();
  end();
}

void LaunchedKernel::defer(Streams::Task task) {
  has_ended_ = true;
  streams().submit(ticket_, std::move(task));
}

void LaunchedKernel::wrote(const at::Tensor& tensor) {
  check_races({access_of(tensor, true)}, epoch(), after());
}

void launch(const c10::Stream& stream, const char* name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, Function function) {
  Aliases aliases;
  std::vector<Access> accesses;
  const auto for_kernel = [&](const std::vector<at::Tensor>& tensors, bool is_write) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) {
      accesses.push_back(access_of(tensor, is_write));
      result.push_back(aliases.to_host(tensor));
    }
    return result;
  };
  auto host_reads = for_kernel(reads, false);
  auto host_writes = for_kernel(writes, true);
  LaunchedKernel kernel(static_cast<StreamNumber>(stream.id()), name, accesses);
  kernel.defer({.run = [r = std::move(host_reads), w = std::move(host_writes),
                        f = std::move(function)] { f(r, w); },
                .may_wait = true});
}

}  // namespace dtrain::testing::fake
