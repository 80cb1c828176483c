#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/data/split.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

void check_data(const config::Config& config, bool may_warn) {
  if (config.data.train.empty()) {
    base::fail(base::ErrorKind::usage, "--data is missing: name a token file or a text");
  }
  const data::Split split = data::open_split(data::split_options(config));
  if (may_warn && config.report.eval_every > 0 && split.validation.size() == 0) {
    base::log_warning("--eval-every {} has no effect without --val-data or --val-fraction",
                      config.report.eval_every);
  }
  if (may_warn && config.train.min_lr > 0 && config.train.schedule == "constant") {
    base::log_warning("--min-lr {} has no effect with --schedule constant", config.train.min_lr);
  }
}

}  // namespace

int run_train(const Arguments& arguments) {
  const auto configured = configure(config::Command::train, arguments);
  if (!configured) return 0;
  const config::Config& config = configured->config;
  const bool first = configured->env.rank == 0;
  // One rank looks at the run folder: the others might see what it has begun to write.
  if (first) config::check_run_folder(config);
  check_data(config, first);
  return RuntimeLibrary::open().run({config::Command::train, config});
}

}  // namespace dtrain::app
