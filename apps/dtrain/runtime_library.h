// Loads libdtrain.so at run time, and lists the plugins and GPUs that it can use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::app {

/// The loaded libdtrain.so. It is never unloaded, because LibTorch's threads may still run.
///
/// Throws: open(): Error{usage} naming what could not be loaded and what to run.
class RuntimeLibrary {
 public:
  /// layout: determines process-wide settings that must be made before LibTorch is loaded.
  [[nodiscard]] static RuntimeLibrary open(const config::LayoutConfig& layout = {});

  /// Device kinds with a plugin beside the library, sorted.
  [[nodiscard]] static std::vector<std::string> devices();

  /// Names of all plugins beside the library, sorted: devices and "mpi".
  [[nodiscard]] static std::vector<std::string> plugins();

  /// The number of visible NVIDIA GPUs with a loaded driver.
  [[nodiscard]] static std::int64_t num_gpus();

  /// Why this process sees none of the machine's GPUs; empty if it sees some, or there are none.
  [[nodiscard]] static std::string no_gpu_reason();

  /// Runs the command and returns its exit status. The library reports errors itself.
  [[nodiscard]] int run(const config::Request& request) const;

 private:
  using RunFunction = int(const char*);
  explicit RuntimeLibrary(RunFunction* function) : run_(function) {}

  RunFunction* run_;
};

}  // namespace dtrain::app
