#include "dtrain/device/plugin.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>

#include "dtrain/base/error.h"

namespace dtrain::device {
namespace {

using base::ErrorKind;
using Entry = Plugin& (*)();

// The folder of the library that this code is in, where plugins lie too.
std::string own_folder() {
  Dl_info info;
  const bool is_found = ::dladdr(reinterpret_cast<const void*>(&plugin), &info) != 0;
  const std::string path = is_found ? info.dli_fname : "";
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) {  // never the working folder, where anybody may have put a library
    base::fail(ErrorKind::device,
               "the folder of libdtrain.so is not known, so no plugin is opened");
  }
  return path.substr(0, slash);
}

Plugin& load(const std::string& kind) {
  const std::string path = own_folder() + "/libdtrain_" + kind + ".so";
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* entry = library == nullptr ? nullptr : ::dlsym(library, "dtrain_device_plugin");
  if (entry == nullptr) {
    const char* reason = ::dlerror();
    const char* advice =
        kind == "cuda" ? "; scripts/setup.sh --cuda installs the libraries that it needs" : "";
    base::fail(ErrorKind::device, "--device {}: cannot load {}: {}{}", kind, path,
               reason != nullptr ? reason : "it is no plugin of dtrain", advice);
  }
  return reinterpret_cast<Entry>(entry)();
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
    base::fail(ErrorKind::device,
               "--device {}:{}: this process sees {} device{} of that kind, numbered from 0",
               name.kind, index, count, count == 1 ? "" : "s");
  }
  const c10::Device device(devices.type(), static_cast<c10::DeviceIndex>(index));
  devices.use(device);
  return device;
}

std::shared_ptr<comm::World> world_on(const config::DeviceName& name,
                                      std::shared_ptr<comm::World> host,
                                      const comm::GroupOptions& options) {
  if (name.is_cpu()) return host;
  const c10::Device device = open(name);
  return plugin(name.kind).make_world(std::move(host), device, options);
}

}  // namespace dtrain::device
