#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/data/split.h"
#include "run_folder.h"
#include "runtime_library.h"

namespace dtrain::app {
namespace {

void check_data(const config::Config& config, bool may_warn) {
  if (config.data.train.empty()) {
    base::fail(base::ErrorKind::usage, "--data is missing: name a token file or a text");
  }
  const data::Split split = data::open_split({.train = config.data.train,
                                              .validation = config.data.validation,
                                              .val_fraction = config.data.val_fraction,
                                              .seq_len = config.data.seq_len,
                                              .vocab = config.model.vocab});
  if (may_warn && config.report.eval_every > 0 && split.validation.size() == 0) {
    base::log_warning("--eval-every {} has no effect without --val-data or --val-fraction",
                      config.report.eval_every);
  }
}

}  // namespace

int run_train(const Arguments& arguments) {
  const auto configured = configure(config::Command::train, arguments);
  if (!configured) return 0;
  const config::Config& config = configured->config;
  const bool first = configured->env.rank == 0;
  // One rank looks at the run folder: the others might see what it has begun to write.
  if (first) check_run_folder(config.run.dir, config.run.overwrite);
  check_data(config, first);
  const RuntimeLibrary library = RuntimeLibrary::open();
  if (first) prepare_run_folder(config.run.dir);
  return library.run({config::Command::train, config});
}

}  // namespace dtrain::app
