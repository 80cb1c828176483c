#include "dtrain/base/plugin_file.h"

#include <dlfcn.h>

namespace dtrain::base {
namespace {

constexpr char kHere = 0;

// The folder of the library that this code is in, where plugins lie too.
std::string own_folder() {
  Dl_info info;
  const bool is_found = ::dladdr(&kHere, &info) != 0;
  const std::string path = is_found ? info.dli_fname : "";
  const std::size_t slash = path.rfind('/');
  // Never the working folder, where anybody may have put a library.
  return slash == path.npos ? "" : path.substr(0, slash);
}

}  // namespace

PluginFile open_plugin(const std::string& name, const char* entry) {
  PluginFile file;
  const std::string folder = own_folder();
  if (folder.empty()) {
    file.obstacle = "the folder of libdtrain.so is not known, so no plugin is opened";
    return file;
  }
  file.path = folder + "/libdtrain_" + name + ".so";
  void* library = ::dlopen(file.path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  file.entry = library == nullptr ? nullptr : ::dlsym(library, entry);
  if (file.entry != nullptr) return file;
  const char* reason = ::dlerror();
  file.obstacle = reason != nullptr ? reason : "it is no plugin of dtrain";
  return file;
}

}  // namespace dtrain::base
