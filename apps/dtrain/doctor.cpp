#include "commands.h"
#include "configure.h"
#include "dtrain/data/split.h"
#include "first_run.h"
#include "provenance.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_doctor(const config::CommandLine& command_line) {
  config::CommandLine job = command_line;
  (void)take_demo_defaults(job);
  const auto configured = configure(job);
  if (!configured) return 0;
  const config::Config& config = configured->config;
  if (!config.data.train.empty()) (void)data::open_split(data::split_options(config));
  warn(config::Command::doctor, *configured);
  return RuntimeLibrary::open(config.layout)
      .run({config::Command::doctor,
            config,
            {.asked = configured->asked, .provenance = doctor_record()}});
}

}  // namespace dtrain::app
