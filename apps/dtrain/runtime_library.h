// libdtrain.so, opened at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/config/config.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::app {

/// The opened library; it stays open until the process ends, since LibTorch starts threads.
///
/// Throws: open(): Error{usage} naming what could not be loaded and what to run.
class RuntimeLibrary {
 public:
  /// layout: of the ranks that will compute; what LibTorch must know of it when it is loaded.
  [[nodiscard]] static RuntimeLibrary open(const config::LayoutConfig& layout = {});

  /// Kinds of devices whose plugins lie beside the library, in the order of their names.
  [[nodiscard]] static std::vector<std::string> devices();

  /// Names of the plugins beside the library: devices and "mpi".
  [[nodiscard]] static std::vector<std::string> plugins();

  /// NVIDIA's GPUs whose driver is loaded.
  [[nodiscard]] static std::int64_t num_gpus();

  /// Why this process sees none of the machine's GPUs; empty where it sees one, or there is none.
  [[nodiscard]] static std::string unused_gpus();

  /// Runs the command to its end and returns the exit status. Errors are reported by the library.
  [[nodiscard]] int run(const config::Request& request) const;

 private:
  using RunFunction = int(const char*);
  explicit RuntimeLibrary(RunFunction* function) : run_(function) {}

  RunFunction* run_;
};

}  // namespace dtrain::app
