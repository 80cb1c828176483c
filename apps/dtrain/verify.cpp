#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/input_file.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "open_for.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_verify(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  const config::VerifyConfig& verify = configured->config.verify;
  if (verify.golden.empty()) {
    base::fail(base::ErrorKind::usage, "--golden is missing: name a fixture, as in tests/golden");
  }
  // Refuse here what cannot be read.
  open_for("--golden", [&] { (void)checkpoint::format::SafetensorsFile::open(verify.golden); });
  if (!verify.trajectory.empty()) {
    (void)base::InputFile::open(
        verify.trajectory,
        {.kind = base::ErrorKind::data, .what = "trajectory file", .advice = "check --trajectory"});
  }
  warn(config::Command::verify, *configured);
  return RuntimeLibrary::open(configured->config.layout)
      .run({config::Command::verify, configured->config});
}

}  // namespace dtrain::app
