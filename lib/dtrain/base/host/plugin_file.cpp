#include "dtrain/base/host/plugin_file.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

namespace dtrain::base {
namespace {

constexpr char kHere = 0;

// The folder of the library that contains this code, and of its plugins.
std::string own_folder() {
  Dl_info info;
  const bool is_found = ::dladdr(&kHere, &info) != 0;
  const std::string path = is_found ? info.dli_fname : "";
  const std::size_t slash = path.rfind('/');
  // Never the working folder, which may contain another user's library.
  return slash == path.npos ? "" : path.substr(0, slash);
}

// Looks up `entry` in an opened library, or stores why that failed.
void find_entry(PluginFile& file, void* library, const char* entry) {
  file.entry = library == nullptr ? nullptr : ::dlsym(library, entry);
  if (file.entry != nullptr) return;
  const char* reason = ::dlerror();
  file.obstacle = reason != nullptr ? reason : "it is not a dtrain plugin";
}

// RTLD_DEEPBIND would hide allocations from AddressSanitizer.
#ifdef __SANITIZE_ADDRESS__
constexpr int kApart = 0;
#else
constexpr int kApart = RTLD_DEEPBIND;
#endif

}  // namespace

PluginFile open_plugin(const std::string& name, const char* entry) {
  PluginFile file;
  const std::string folder = own_folder();
  if (folder.empty()) {
    file.obstacle = "the folder of libdtrain.so is unknown";
    return file;
  }
  file.path = folder + "/libdtrain_" + name + ".so";
  find_entry(file, ::dlopen(file.path.c_str(), RTLD_NOW | RTLD_GLOBAL), entry);
  return file;
}

std::string library_folder_of_program() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto lib = program.parent_path().parent_path() / "lib";
  return (std::filesystem::is_directory(lib / "dtrain", error) ? lib / "dtrain" : lib).string();
}

PluginFile open_isolated(const std::string& file_name, const char* entry) {
  PluginFile file;
  file.path = library_folder_of_program() + "/" + file_name;
  find_entry(file, ::dlopen(file.path.c_str(), RTLD_NOW | RTLD_LOCAL | kApart), entry);
  return file;
}

}  // namespace dtrain::base
