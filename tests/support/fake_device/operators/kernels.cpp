#include "support/fake_device/operators/kernels.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "support/fake_device/device_memory.h"
#include "support/fake_device/graph.h"
#include "support/fake_device/operators/cuda_operators.h"
#include "support/fake_device/operators/launched_kernel.h"
#include "support/fake_device/operators/output_shapes.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {

namespace {

void run_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
}

/// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack arguments)
      : op_(op), name_(op.schema().name().c_str()), stack_(std::move(arguments)) {
    results_ = results_of(op_, stack_);
    if (results_ != Results::views) check_as_cuda(op_, stack_);
    for (std::size_t i = 0; i < stack_.size(); ++i) convert(i);
    compute_as_cuda(op_, stack_);
    if (device_ < 0) device_ = current_device();
  }

  torch::jit::Stack run() {
    const OnDevice on(device_);
    if (results_ == Results::views) {
      run_cpu_kernel(op_, stack_);
      return on_device(nullptr);
    }
    if (captured() != nullptr || streams().options().execution == Execution::late) {
      if (results_ == Results::written_arguments && may_defer()) return defer_writes();
      if (results_ == Results::new_tensors) {
        if (const auto predicted = predict_results(op_, stack_)) return defer(*predicted);
      }
    }
    return run_now();
  }

 private:
  struct Argument {
    at::Tensor device;
    at::Tensor host;
    bool is_write = false;
  };

  void convert(std::size_t index) {
    const c10::AliasInfo* const alias = op_.schema().arguments()[index].alias_info();
    const bool is_write = alias != nullptr && alias->isWrite();
    c10::IValue& value = stack_[index];
    if (value.isDevice()) {
      if (value.toDevice().type() == kType && device_ < 0) device_ = value.toDevice().index();
      value = c10::Device(c10::kCPU);
    }
    replace_tensors(value, [&](const at::Tensor& t) { return on_host(t, is_write); });
  }

  at::Tensor on_host(const at::Tensor& t, bool is_write) {
    if (!is_on_device(t)) {
      TORCH_CHECK(t.is_cpu() && t.dim() == 0 && !is_write, name_, ": a host tensor of ", t.sizes(),
                  " among the fake device's");
      return t.unsafeGetTensorImpl()->is_wrapped_number() ? t
                                                          : t.clone();  // by value, as it is now
    }
    TORCH_CHECK(device_ < 0 || device_ == t.device().index(), name_,
                ": expected all tensors to be on the same device, but found fake:", int{device_},
                " and ", t.device());
    device_ = t.device().index();
    const at::Tensor host = aliases_.to_host(t);
    arguments_.push_back({t, host, is_write});
    if (results_ != Results::views) accesses_.push_back(access_of(t, is_write));
    return host;
  }

  // A kernel may resize an output without elements.
  [[nodiscard]] bool may_defer() const {
    return !arguments_.empty() && std::ranges::none_of(arguments_, [](const Argument& a) {
      return a.is_write && a.host.numel() == 0;
    });
  }

  torch::jit::Stack defer_writes() {
    torch::jit::Stack results;
    for (const c10::Argument& result : op_.schema().returns()) {
      for (std::size_t i = 0; i < stack_.size(); ++i) {
        const c10::AliasInfo* const alias = op_.schema().arguments()[i].alias_info();
        if (alias == nullptr || !(*alias == *result.alias_info())) continue;
        results.emplace_back(device_tensor_of(stack_[i].toTensor()));
        break;
      }
    }
    std::vector<std::pair<at::Tensor, std::vector<std::int64_t>>> written;
    for (const Argument& a : arguments_) {
      if (a.is_write) written.emplace_back(a.host, a.host.sizes().vec());
    }
    defer([op = op_, name = name_, stack = std::move(stack_),
           written = std::move(written)]() mutable {
      run_cpu_kernel(op, stack);
      for (const auto& [tensor, sizes] : written) {
        TORCH_CHECK(tensor.sizes() == sizes, name, ": a late kernel resized its output");
      }
    });
    return results;
  }

  torch::jit::Stack defer(torch::jit::Stack predicted) {
    std::vector<at::Tensor> outputs;
    for (c10::IValue& value : predicted) {
      replace_tensors(value, [&](const at::Tensor& like) {
        at::Tensor output = new_tensor(like.sizes(), like.strides(), like.scalar_type());
        accesses_.push_back(access_of(output, true));
        outputs.push_back(aliases_.to_host(output));
        return output;
      });
    }
    defer([op = op_, name = name_, stack = std::move(stack_),
           outputs = std::move(outputs)]() mutable {
      run_cpu_kernel(op, stack);
      const std::vector<at::Tensor> results = tensors_in(std::move(stack));
      TORCH_CHECK(results.size() == outputs.size(), name, ": wrong number of results predicted");
      for (std::size_t i = 0; i < results.size(); ++i) {
        TORCH_CHECK(
            results[i].sizes() == outputs[i].sizes() && results[i].dtype() == outputs[i].dtype(),
            name, ": result ", i, " was predicted wrongly");
        outputs[i].copy_(results[i]);
      }
    });
    return predicted;
  }

  void defer(std::function<void()> run) {
    if (Graph* const graph = captured()) {
      arguments_.clear();
      return graph->add({.name = name_, .accesses = accesses_, .run = std::move(run)});
    }
    LaunchedKernel kernel(current_stream(device_), name_, accesses_);
    arguments_.clear();  // the host may free its tensors; the queued ones keep the memory
    kernel.defer({.run = std::move(run)});
  }

  torch::jit::Stack run_now() {
    LaunchedKernel kernel(current_stream(device_), name_, accesses_);
    torch::jit::Stack results;
    kernel.run([&] {
      run_cpu_kernel(op_, stack_);
      take_over_resized(kernel);
      results = on_device(&kernel);
    });
    if (results_ == Results::host_values || results_ == Results::tensors_of_unknown_shape) {
      const bool is_item = op_.schema().name() == "aten::_local_scalar_dense";
      streams().synchronise(kernel.after(), device_,
                            is_item ? &Synchronisations::item : &Synchronisations::value);
    }
    return results;
  }

  // Outputs that the kernel gave another shape, and perhaps memory of the host's.
  void take_over_resized(LaunchedKernel& kernel) {
    for (const Argument& a : arguments_) {
      if (!a.is_write ||
          (a.host.sizes() == a.device.sizes() && a.host.strides() == a.device.strides())) {
        continue;
      }
      a.device.unsafeGetTensorImpl()->set_sizes_and_strides(a.host.sizes(), a.host.strides());
      const c10::Storage& storage = a.device.storage();
      const std::size_t bytes = a.host.storage().nbytes();
      if (bytes > storage.nbytes()) {
        storage.unsafeGetStorageImpl()->set_data_ptr_noswap(device_allocator().allocate(bytes));
        storage.unsafeGetStorageImpl()->set_nbytes(bytes);
        std::memcpy(memory().for_kernels(storage.mutable_data()), a.host.storage().data(), bytes);
      }
      kernel.wrote(a.device);
    }
  }

  [[nodiscard]] at::Tensor device_tensor_of(const at::Tensor& host) const {
    for (const Argument& a : arguments_) {
      if (a.host.is_same(host)) return a.device;
    }
    return aliases_.to_device(host);
  }

  // What the stack holds, on the device; new tensors are written by `kernel`.
  torch::jit::Stack on_device(LaunchedKernel* kernel) {
    torch::jit::Stack results = std::move(stack_);
    for (c10::IValue& value : results) {
      replace_tensors(value, [&](const at::Tensor& host) {
        at::Tensor result = device_tensor_of(host);
        if (result.defined()) return result;
        TORCH_CHECK(kernel != nullptr, name_, ": a view of other memory");
        result = new_tensor(host.sizes(), host.strides(), host.scalar_type());
        aliases_.to_host(result).copy_(host);
        kernel->wrote(result);
        return result;
      });
    }
    return results;
  }

  c10::OperatorHandle op_;
  const char* name_;
  torch::jit::Stack stack_;
  Results results_ = Results::views;
  Aliases aliases_;
  std::vector<Argument> arguments_;
  std::vector<Access> accesses_;
  c10::DeviceIndex device_ = -1;
};

}  // namespace

void run_by_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  torch::jit::Stack arguments(first, stack->end());
  stack->erase(first, stack->end());
  for (c10::IValue& result : Call(op, std::move(arguments)).run()) {
    stack->push_back(std::move(result));
  }
}

namespace {

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pin = std::optional<bool>;

c10::DeviceIndex device_index(const Device& device) {
  return device && device->has_index() ? device->index() : current_device();
}

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout, Device device, Pin,
                 std::optional<at::MemoryFormat> format) {
  const OnDevice on(device_index(device));
  return at::detail::empty_generic(sizes, &device_allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout,
                         Device device, Pin) {
  const OnDevice on(device_index(device));
  return new_tensor(sizes, strides, c10::dtype_or_default(dtype));
}

// Not at::native::resize_: it copies through the storage on the host.
const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes,
                          std::optional<at::MemoryFormat>) {
  if (self.sizes() == sizes) return self;
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t d = sizes.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<std::int64_t>(sizes[d], 1);
  }
  const OnDevice on(self.device().index());
  resize(self, sizes, strides);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator().recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

void register_tensor_operators(torch::Library& aten) {
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("resize_", &resize_);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("record_stream", &record_stream);
  aten.impl("view", &at::native::view);
  aten.impl("as_strided", &at::native::as_strided_tensorimpl);
  aten.impl("_reshape_alias", &at::native::_reshape_alias);
  aten.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  aten.impl("set_.source_Storage",
            static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  aten.impl("set_.source_Tensor", &at::native::set_tensor_);
}

}  // namespace dtrain::testing::fake
