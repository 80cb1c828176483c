#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_generate(const Arguments& arguments) {
  const auto configured = configure(config::Command::generate, arguments);
  if (!configured) return 0;
  const config::GenerateConfig& generate = configured->config.generate;
  if (generate.from.empty()) {
    base::fail(base::ErrorKind::usage, "--from is missing: name a model.safetensors");
  }
  (void)checkpoint::format::SafetensorsFile::open(generate.from);  // refuses what is no model file
  return RuntimeLibrary::open().run({config::Command::generate, configured->config});
}

}  // namespace dtrain::app
