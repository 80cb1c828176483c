// Copies between host and device, and between devices.
#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "support/fake_device/graph.h"
#include "support/fake_device/operators/access.h"
#include "support/fake_device/operators/cuda_operators.h"
#include "support/fake_device/operators/kernels.h"
#include "support/fake_device/operators/launched_kernel.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

bool is_pinned(const at::Tensor& tensor) {
  return tensor.is_cpu() && memory().find(tensor.storage().data()) != nullptr;
}

/// One copy, on the current stream of the source's device, or of the target's if the source is on the host.
class Copy {
 public:
  Copy(const at::Tensor& source, const at::Tensor& target, bool non_blocking)
      : source_(source),
        target_(target),
        involves_host_(source.is_cpu() || target.is_cpu()),
        is_pinned_(is_pinned(source) || is_pinned(target)),
        is_asynchronous_(!involves_host_ || (non_blocking && (is_pinned_ || source.is_cpu()))),
        device_((is_on_device(source) ? source : target).device().index()) {}

  void run() {
    const at::Tensor from = for_kernel(source_, false);
    const at::Tensor to = for_kernel(target_, true);
    const auto copy = [from, to] {
      const at::AutoDispatchBelowADInplaceOrView below;
      at::Tensor(to).copy_(from);
    };
    const bool is_between_devices = !involves_host_ && target_.device().index() != device_;
    if (Graph* const graph = captured(); graph != nullptr && !involves_host_) {
      if (is_between_devices) refuse_in_capture("a copy between devices");
      return graph->add({.name = name(), .accesses = accesses_, .run = copy});
    }
    const StreamNumber stream = current_stream(device_);
    const StreamNumber peer =
        is_between_devices ? current_stream(target_.device().index()) : stream;
    streams().order(stream, streams().launched(peer));
    LaunchedKernel kernel(stream, name(), accesses_);
    streams().order(peer, kernel.after());
    if (is_asynchronous_) guard_pinned(kernel.epoch());
    if (is_asynchronous_ && streams().options().execution == Execution::late) {
      kernel.defer({.run = copy});
    } else {
      kernel.run(copy);
    }
    if (!is_asynchronous_) streams().synchronise(kernel.after(), device_, &Synchronisations::copy);
  }

 private:
  [[nodiscard]] const char* name() const {
    if (target_.is_cpu()) return "copy to the host";
    return source_.is_cpu() ? "copy from the host" : "copy";
  }

  at::Tensor for_kernel(const at::Tensor& tensor, bool is_write) {
    if (is_on_device(tensor) || is_pinned(tensor)) {
      accesses_.push_back(access_of(tensor, is_write));
      return aliases_.to_host(tensor);
    }
    return is_asynchronous_ ? tensor.clone() : tensor;  // the caller may change it at once
  }

  void guard_pinned(const Epoch& copy) const {
    for (const Access& access : accesses_) {
      if (access.block && access.block->place == Place::pinned) guard_copy(access, copy);
    }
  }

  at::Tensor source_;
  at::Tensor target_;
  bool involves_host_;
  bool is_pinned_;
  bool is_asynchronous_;
  c10::DeviceIndex device_;
  Aliases aliases_;
  std::vector<Access> accesses_;
};

}  // namespace

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  note_call("copy");
  if (target.numel() > 0) Copy(source, target, non_blocking).run();
  return target;
}

}  // namespace dtrain::testing::fake
