// Registers the fake devices with LibTorch.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <charconv>
#include <deque>
#include <exception>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "support/fake_device/device_memory.h"
#include "support/fake_device/fake_device.h"
#include "support/fake_device/faults.h"
#include "support/fake_device/guard.h"
#include "support/fake_device/memory.h"
#include "support/fake_device/operators/kernels.h"
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

namespace {

struct Settings {
  Options options;
  std::optional<std::uint64_t> memory;
  std::optional<std::uint64_t> lose_after;
  std::uint64_t error_code = kUncorrectable;
  std::optional<std::uint64_t> device;
};

std::uint64_t number_in(const std::string& word) {
  const char* const begin = word.data() + word.find('=') + 1;
  const char* const end = word.data() + word.size();
  std::uint64_t number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) throw std::invalid_argument(word + ": not a number");
  return number;
}

void read(const std::string& word, Settings& settings) {
  if (word == "late") {
    settings.options.execution = Execution::late;
  } else if (word == "races-are-errors") {
    settings.options.races_are_errors = true;
  } else if (word.starts_with("seed=")) {
    settings.options.seed = number_in(word);
  } else if (word.starts_with("queues=")) {
    settings.options.queues = number_in(word);
  } else if (word.starts_with("memory=")) {
    settings.memory = number_in(word);
  } else if (word.starts_with("lose-after=")) {
    settings.lose_after = number_in(word);
  } else if (word.starts_with("error=")) {
    settings.error_code = number_in(word);
  } else if (word.starts_with("device=")) {
    settings.device = number_in(word);
  } else {
    throw std::invalid_argument("the fake device has no setting " + word);
  }
}

void open(const std::string& text) {
  Settings settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) read(word, settings);
  install();
  set_options(settings.options);
  for (c10::DeviceIndex device = 0; device < kDevices; ++device) {
    if (settings.device.value_or(static_cast<std::uint64_t>(device)) !=
        static_cast<std::uint64_t>(device)) {
      continue;
    }
    limit_memory(device, settings.memory);
    lose_device_after(device, settings.lose_after, static_cast<int>(settings.error_code));
  }
}

}  // namespace

}  // namespace dtrain::testing::fake
const char* dtrain_fake_device_open(const char* settings) {
  static std::string error;
  try {
    dtrain::testing::fake::open(settings);
    return nullptr;
  } catch (const std::exception& e) {
    error = e.what();
    return error.c_str();
  }
}
