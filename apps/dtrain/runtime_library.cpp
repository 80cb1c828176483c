#include "runtime_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/base/error.h"

namespace dtrain::app {
namespace {

// bin/dtrain and lib/libdtrain.so lie side by side.
std::filesystem::path library_folder() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "lib";
}

}  // namespace

RuntimeLibrary RuntimeLibrary::open() {
  const std::string path = (library_folder() / "libdtrain.so").string();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : ::dlsym(library, "dtrain_run");
  if (symbol == nullptr) {
    const char* reason = ::dlerror();
    base::fail(base::ErrorKind::usage,
               "cannot load LibTorch through {}: {}; run scripts/setup.sh and build again", path,
               reason != nullptr ? reason : "dtrain_run is not in it");
  }
  return RuntimeLibrary(reinterpret_cast<RunFunction*>(symbol));
}

std::vector<std::string> RuntimeLibrary::devices() {
  constexpr std::string_view kPrefix = "libdtrain_";
  std::vector<std::string> kinds;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(library_folder(), error)) {
    const std::filesystem::path& path = entry.path();
    const std::string name = path.stem().string();
    if (name.starts_with(kPrefix) && path.extension() == ".so") {
      kinds.push_back(name.substr(kPrefix.size()));
    }
  }
  std::ranges::sort(kinds);
  return kinds;
}

int RuntimeLibrary::run(const config::Request& request) const {
  return run_(config::to_request(request).c_str());
}

}  // namespace dtrain::app
