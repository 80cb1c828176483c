// Registers the fake devices with LibTorch.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <deque>
#include <string>

#include "support/fake_device/device_memory.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/guard.h"
#include "support/fake_device/hooks.h"
#include "support/fake_device/kernels.h"
#include "support/fake_device/stray_access.h"
#include "support/fake_device/streams.h"

namespace dtrain::testing::fake {
namespace {

constexpr auto kKey = c10::DispatchKey::PrivateUse1;

torch::Library& library_of(const char* name_space, c10::DispatchKey key = kKey) {
  static auto* const kept = new std::deque<torch::Library>;
  return kept->emplace_back(torch::Library::IMPL, name_space, key, __FILE__, __LINE__);
}

// Whether other devices get a composition of other operators where the CPU has a kernel of its own,
// which may round differently.
bool is_shadowed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op.hasKernelForDispatchKey(kKey) &&
         (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd));
}

void register_operators() {
  torch::Library& aten = library_of("aten");
  register_tensor_operators(aten);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || !is_shadowed(*op)) continue;
    const std::string own = name.name.substr(std::string_view("aten::").size());
    const std::string full = name.overload_name.empty() ? own : own + "." + name.overload_name;
    aten.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_by_cpu_kernel>());
  }
  // As copy_: else they would copy a conjugated tensor to resolve it, by themselves.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    library_of("aten", key).impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  library_of("_").fallback(torch::CppFunction::makeFromBoxedFunction<&run_by_cpu_kernel>());
}

bool install_once() {
  report_stray_accesses();
  (void)streams();
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(kType, &device_allocator());
  register_guard();
  register_hooks();
  register_operators();
  return true;
}

}  // namespace

void install() { [[maybe_unused]] static const bool is_installed = install_once(); }

void set_options(const Options& options) {
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    streams().learn(streams().launched_on(device));
  }
  streams().set_options(options);
}

std::vector<std::string> take_races() { return streams().take_races(); }

}  // namespace dtrain::testing::fake
