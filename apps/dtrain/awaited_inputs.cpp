#include "awaited_inputs.h"

#include <cerrno>
#include <exception>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/path_kind.h"
#include "dtrain/base/rank_env.h"
#include "dtrain/base/storage_error.h"
#include "dtrain/checkpoint/store/earlier_attempt.h"
#include "dtrain/config/command_line.h"
#include "dtrain/config/data_mixture.h"
#include "dtrain/config/saved_run.h"
#include "provenance.h"

namespace dtrain::app {
namespace {

namespace store = checkpoint::store;

// parse_mixture takes a file name with a comma for a mixture if there is no such file.
std::vector<std::string> files_of(const std::string& train) {
  try {
    const auto mixture = config::parse_mixture(train);
    if (mixture.size() == 1) return {train};
    std::vector<std::string> files;
    for (const config::WeightedFile& each : mixture) files.push_back(each.path);
    return files;
  } catch (const base::Error&) {
    return {train};
  }
}

std::vector<std::string> inputs_of(const config::Config& config) {
  std::vector<std::string> inputs = files_of(config.data.train);
  inputs.push_back(config.data.validation);
  inputs.push_back(config.machine.offload.folder);
  return inputs;
}

config::Config settings(const config::CommandLine& command_line) {
  return config::load(config::with_deepspeed(command_line)).config;
}

// The settings of a command line that an earlier attempt has read: an error now means that a
// configuration file is missing.
config::Config settings_read_before(const config::CommandLine& command_line) {
  config::Config given;
  std::exception_ptr passing;  // its retries are over
  base::retry_task([&](int) {
    try {
      given = settings(command_line);
    } catch (const base::StorageError&) {
      passing = std::current_exception();
    } catch (const base::Error& error) {
      throw base::StorageError(error.what(), ENOENT);
    }
  });
  if (passing) std::rethrow_exception(passing);
  return given;
}

void await_all(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (!path.empty()) base::await_path(path);
  }
}

}  // namespace

void await_inputs(const config::CommandLine& command_line) {
  const base::RankEnv env = base::rank_env_of_process();
  if (env.restart_count == 0) return;
  const std::string origin = provenance(env.world_size, env);
  const bool has_committed = base::committed_step_of_process(store::name_of_run(origin)) >= 0;
  const config::Config given =
      has_committed ? settings_read_before(command_line) : settings(command_line);
  const auto earlier = store::find_earlier_attempt(given, origin);
  if (earlier) {
    // The command line may name no data; the run's settings do.
    const std::string record = earlier->run_dir + "/config.json";
    await_all(inputs_of(config::read_saved_run(record).resolved));
    await_all({given.checkpoint.resume.path});  // its settings are inherited
    if (!earlier->has_checkpoint) await_all({given.checkpoint.init_from});
  } else if (has_committed) {  // its folder is away as well
    await_all(inputs_of(given));
  }
}

}  // namespace dtrain::app
