#include "dtrain/checkpoint/store/earlier_attempt.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/file.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::checkpoint::store {
namespace {

using config::Resume;
using nlohmann::json;

json provenance_of(const std::string& run_dir) {
  const std::string path = run_dir + "/config.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  try {
    return json::parse(config::value_in_file(path, config::kProvenanceKey), nullptr, false);
  } catch (const base::Error&) {  // no configuration of ours
    return {};
  }
}

bool is_same(const json& one, const json& other, const char* key) {
  return one.is_object() && one.contains(key) && one[key] == other[key];
}

bool is_restart(const json& provenance) {
  return provenance.is_object() && provenance.contains("launch") &&
         provenance.value("restarts", 0) > 0;
}

}  // namespace

std::optional<EarlierAttempt> find_earlier_attempt(const config::Config& config,
                                                   std::string_view provenance) {
  const json own = json::parse(provenance, nullptr, false);
  if (!is_restart(own)) return std::nullopt;
  const auto candidates = config.run.dir.empty() ? config::unnamed_run_folders(config)
                                                 : std::vector<std::string>{config.run.dir};
  const auto found = std::ranges::find_if(candidates, [&](const std::string& folder) {
    const json theirs = provenance_of(folder);
    return is_same(theirs, own, "launch") && is_same(theirs, own, "command_line");
  });
  if (found == candidates.end()) return std::nullopt;
  return EarlierAttempt{.run_dir = *found,
                        .has_checkpoint = !list_steps(checkpoints_folder(*found)).empty()};
}

config::Config going_on_with(config::Config config, const EarlierAttempt& earlier) {
  Resume& resume = config.checkpoint.resume;
  config.run.dir = earlier.run_dir;
  // A run that begins at another run's checkpoint begins there again, until it has one of its own.
  const bool begins_elsewhere = resume.kind == Resume::Kind::path && !earlier.has_checkpoint;
  config.run.overwrite = begins_elsewhere;
  if (!begins_elsewhere) resume = Resume{.kind = Resume::Kind::automatic};
  return config;
}

}  // namespace dtrain::checkpoint::store
