#include "commands.h"
#include "configure.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_plan(const Arguments& arguments) {
  const auto configured = configure(config::Command::plan, arguments);
  if (!configured) return 0;
  return RuntimeLibrary::open().run({config::Command::plan, configured->asked});
}

}  // namespace dtrain::app
