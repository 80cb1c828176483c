#include "runtime_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/config/values/values.h"

namespace dtrain::app {
namespace {

// The number of NVIDIA GPUs with a loaded driver.
std::int64_t gpus_of_machine() {
  constexpr std::string_view kPrefix = "nvidia";
  std::error_code error;
  return std::ranges::count_if(base::names_in("/dev", error), [kPrefix](const std::string& name) {
    return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
           name.find_first_not_of("0123456789", kPrefix.size()) == name.npos;
  });
}

bool first_line_begins_with(const std::string& file, std::string_view text) {
  std::string line;
  return std::getline(std::ifstream(file), line) && line.starts_with(text);
}

// True if an NVIDIA GPU is installed, with or without a driver.
bool has_nvidia_gpu() {
  const std::string folder = "/sys/bus/pci/devices";
  std::error_code error;
  return std::ranges::any_of(base::names_in(folder, error), [&folder](const std::string& name) {
    const std::string device = folder + "/" + name;
    return first_line_begins_with(device + "/vendor", "0x10de") &&
           first_line_begins_with(device + "/class", "0x03");
  });
}

}  // namespace

RuntimeLibrary RuntimeLibrary::open(const config::LayoutConfig& layout) {
  const std::string path = base::library_folder_of_program() + "/libdtrain.so";
  base::limit_openmp_spinning();
  base::set_cuda_hardware_queues();
  // --strategy auto may choose a pipeline.
  const bool may_have_stages = layout.pp > 1 || layout.strategy == config::Strategy::automatic;
  if (may_have_stages) base::disable_lazy_kernel_loading();
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = library == nullptr ? nullptr : ::dlsym(library, "dtrain_run");
  if (symbol == nullptr) {
    const char* reason = ::dlerror();
    if (reason != nullptr && std::string_view(reason).find("failed to map") != std::string::npos) {
      base::fail(base::ErrorKind::usage,
                 "cannot load LibTorch: {}; the limit on address space is too low: raise or remove "
                 "it (ulimit -v)",
                 reason);
    }
    base::fail(
        base::ErrorKind::usage,
        "cannot load LibTorch through {}: {}; run scripts/setup.sh and rebuild, or unpack the "
        "whole archive",
        path, reason != nullptr ? reason : "it lacks dtrain_run");
  }
  return RuntimeLibrary(reinterpret_cast<RunFunction*>(symbol));
}

std::vector<std::string> RuntimeLibrary::plugins() {
  constexpr std::string_view kPrefix = "libdtrain_";
  constexpr std::string_view kSuffix = ".so";
  std::vector<std::string> names;
  std::error_code error;
  for (const std::string& file : base::names_in(base::library_folder_of_program(), error)) {
    if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) continue;
    const std::size_t length = file.size() - kPrefix.size() - kSuffix.size();
    names.push_back(file.substr(kPrefix.size(), length));
    if (!config::DeviceName::parse(names.back())) names.pop_back();
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> RuntimeLibrary::devices() {
  std::vector<std::string> names = plugins();
  std::erase(names, "mpi");  // a backend
  return names;
}

std::int64_t RuntimeLibrary::num_gpus() { return base::visible_gpus_of_process(gpus_of_machine()); }

std::string RuntimeLibrary::no_gpu_reason() {
  if (num_gpus() > 0) return {};
  if (gpus_of_machine() > 0) return "CUDA_VISIBLE_DEVICES hides the GPUs of this machine";
  return has_nvidia_gpu() ? "an NVIDIA GPU is installed, but its driver is not (no /dev/nvidia0)"
                          : "";
}

int RuntimeLibrary::run(const config::Request& request) const {
  return run_(config::to_request(request).c_str());
}

}  // namespace dtrain::app
