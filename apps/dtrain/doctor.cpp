#include "commands.h"
#include "configure.h"
#include "provenance.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_doctor(const Arguments& arguments) {
  const auto configured = configure(config::Command::doctor, arguments);
  if (!configured) return 0;
  warn(config::Command::doctor, *configured);
  return RuntimeLibrary::open().run(
      {config::Command::doctor, configured->config, {.provenance = doctor_record()}});
}

}  // namespace dtrain::app
