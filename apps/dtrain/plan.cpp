#include "commands.h"
#include "configure.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_plan(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  return RuntimeLibrary::open().run({config::Command::plan, configured->asked});
}

}  // namespace dtrain::app
