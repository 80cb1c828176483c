#include "dtrain/device/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::device {
namespace {

using base::ErrorKind;
using Entry = Plugin& (*)();

constexpr const char* kEntry = "dtrain_device_plugin_2";
constexpr const char* kNvidiaDriver = "libcuda.so.1";

// The plugin's libraries need the driver, even if the loader reports another missing library first.
bool has_nvidia_driver() {
  void* library = ::dlopen(kNvidiaDriver, RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) ::dlclose(library);
  return library != nullptr;
}

// Reports why a library was not loaded, and what to do.
[[noreturn]] void refuse(const std::string& kind, const std::string& path,
                         const std::string& reason) {
  const bool is_cuda = kind == "cuda";
  if (is_cuda && !has_nvidia_driver()) {
    base::fail(ErrorKind::device,
               "--device cuda: this machine has no NVIDIA driver ({} cannot be loaded); use "
               "--device cpu, or install the driver and check that nvidia-smi lists a GPU",
               kNvidiaDriver);
  }
  const std::size_t missing = reason.find("undefined symbol");
  if (missing != reason.npos && reason.find("dtrain", missing) != reason.npos) {
    base::fail(ErrorKind::device,
               "{} was built for another version of dtrain ({}); rebuild it with scripts/build.sh "
               "dtrain_{}",
               path, reason, kind);
  }
  // Empty libraries may stand in for NVIDIA's (scripts/setup.sh --dev).
  if (is_cuda && missing != reason.npos) {
    base::fail(ErrorKind::device,
               "NVIDIA's libraries are missing or do not match LibTorch ({}); run "
               "scripts/setup.sh --cuda",
               reason);
  }
  base::fail(ErrorKind::device, "cannot load {}: {}{}", path, reason,
             is_cuda ? "; install the libraries that it needs with scripts/setup.sh --cuda" : "");
}

Plugin& load(const std::string& kind) {
  const base::PluginFile file = base::open_plugin(kind, kEntry);
  if (file.path.empty()) base::fail(ErrorKind::device, "{}", file.obstacle);
  if (file.entry == nullptr) refuse(kind, file.path, file.obstacle);
  return reinterpret_cast<Entry>(file.entry)();
}

// Collective.
void refuse_shared_device(comm::World& host, const std::string& own) {
  if (host.size() == 1) return;
  std::map<std::string, std::int64_t> owners;
  std::int64_t rank = 0;
  for (const std::string& device : comm::exchange_texts(host.control(), own)) {
    const auto [owner, is_first] = owners.emplace(device, rank);
    if (!is_first) {
      base::fail(ErrorKind::usage, "ranks {} and {} both use device {}; {}", owner->second, rank,
                 device,
                 host.backend() == "local"
                     ? "use at most as many --local-ranks as there are devices"
                     : "launch at most as many ranks as there are devices, or, for tests only, add "
                       "--share-devices on");
    }
    ++rank;
  }
}

}  // namespace

Plugin& plugin(const std::string& kind) {
  static std::mutex mutex;
  static std::map<std::string, Plugin*> loaded;
  const std::lock_guard lock(mutex);
  Plugin*& found = loaded[kind];
  if (found == nullptr) found = &load(kind);
  return *found;
}

c10::Device open(const config::DeviceName& name) {
  if (name.is_cpu()) return c10::kCPU;
  Plugin& devices = plugin(name.kind);
  const std::int64_t count = devices.count();
  const std::int64_t index = name.index.value_or(0);
  if (index >= count) {
    base::fail(ErrorKind::device, "--device {}: this process sees {}", name,
               count == 0   ? "no device; use --device cpu, or check nvidia-smi and "
                              "CUDA_VISIBLE_DEVICES"
               : count == 1 ? "1 device, number 0"
                            : fmt::format("{} devices, numbers 0 to {}", count, count - 1));
  }
  const c10::Device device(devices.type(), static_cast<c10::DeviceIndex>(index));
  devices.use(device);
  return device;
}

std::shared_ptr<comm::World> make_device_world(const config::DeviceName& name,
                                               std::int64_t local_rank,
                                               std::shared_ptr<comm::World> host,
                                               const comm::GroupOptions& options) {
  if (name.is_cpu()) return host;
  Plugin& devices = plugin(name.kind);
  config::DeviceName own = name;
  if (!own.index) own.index = local_rank % std::max<std::int64_t>(1, devices.count());
  const c10::Device device = open(own);
  if (!options.shares_devices) refuse_shared_device(*host, devices.identity(device));
  return devices.make_world(std::move(host), device, options);
}

}  // namespace dtrain::device
