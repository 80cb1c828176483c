// The subcommands that need LibTorch beside train: they check here what can be checked without it.
#include "commands.h"
#include "configure.h"
#include "dtrain/base/error.h"
#include "dtrain/base/input_file.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/format/safetensors.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/schema.h"
#include "dtrain/data/split.h"
#include "inherited_run.h"
#include "model_path.h"
#include "provenance.h"
#include "runtime_library.h"

namespace dtrain::app {

int run_generate(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  config::Config config = configured->config;
  require_from(config.generate.from);
  config.generate.from = model_path(config.generate.from);
  refuse_other_files(config.generate.from);
  warn(config::Command::generate, *configured);
  return RuntimeLibrary::open().run({config::Command::generate, config});
}

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
  config::Config asked = configured->loaded.config;  // the rest follows from the model
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

int run_plan(const config::CommandLine& command_line) {
  const auto configured = configure(command_line);
  if (!configured) return 0;
  return RuntimeLibrary::open().run({config::Command::plan, configured->loaded.config});
}

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
            {.asked = configured->loaded.config, .provenance = doctor_record()}});
}

}  // namespace dtrain::app
