#include "dtrain/comm/backend_plugin.h"

#include "dtrain/base/error.h"
#include "dtrain/base/plugin_file.h"

namespace dtrain::comm {

std::shared_ptr<World> create_plugin_world(const std::string& name, const WorldOptions& options) {
  using Entry = BackendPlugin& (*)();
  const base::PluginFile file = base::open_plugin(name, "dtrain_backend_plugin");
  if (file.entry == nullptr) {
    base::fail(base::ErrorKind::usage,
               "--backend {}: cannot load {}: {}; it is built where Debian's libopenmpi-dev is "
               "installed and needs its libopenmpi3 to run; or use --backend gloo",
               name, file.path.empty() ? "libdtrain_" + name + ".so" : file.path, file.obstacle);
  }
  BackendPlugin& plugin = reinterpret_cast<Entry>(file.entry)();
  if (plugin.interface() != kBackendInterface) {
    base::fail(base::ErrorKind::usage,
               "--backend {}: {} is of another version of dtrain (interface {}, this is {}); "
               "install both from one build",
               name, file.path, plugin.interface(), kBackendInterface);
  }
  return plugin.create_world(options);
}

}  // namespace dtrain::comm
