#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/schema.h"
#include "inherited_run.h"
#include "model_path.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_evaluate(const config::CommandLine& command_line) {
  auto configured = configure(command_line);
  if (!configured) return 0;
  config::Config& config = configured->config;
  require_from(config.generate.from);
  if (config.data.train.empty()) {
    base::fail(base::ErrorKind::usage, "--data is missing: name a token file or a text");
  }
  // The sequences are validation data, as settings and their notices know it.
  if (config.data.val_fraction == 0) config.data.validation = config.data.train;
  warn(config::Command::evaluate, *configured);
  config::Config asked = configured->asked;  // the rest follows from the model
  asked.machine.device = config.machine.device;
  asked.machine.threads = config.machine.threads;
  if (!configured->is_quiet && run_of_model(asked.generate.from).empty()) {
    base::log_info("{} lies in no run folder: evaluated with --seq-len {} and --dtype {}",
                   asked.generate.from, config.data.seq_len,
                   config::value_text(*config::find_key("machine.dtype"), config));
  }
  refuse_other_files(asked.generate.from);
  return RuntimeLibrary::open().run({config::Command::evaluate, asked});
}

}  // namespace dtrain::app
