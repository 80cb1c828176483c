#include "runtime_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "dtrain/base/error.h"

namespace dtrain::app {
namespace {

// bin/dtrain and lib/libdtrain.so lie side by side.
std::string library_path() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  return (program.parent_path().parent_path() / "lib" / "libdtrain.so").string();
}

}  // namespace

RuntimeLibrary RuntimeLibrary::open() {
  const std::string path = library_path();
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

int RuntimeLibrary::run(const config::Request& request) const {
  return run_(config::to_request(request).c_str());
}

}  // namespace dtrain::app
