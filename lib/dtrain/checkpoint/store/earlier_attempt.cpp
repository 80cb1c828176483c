#include "dtrain/checkpoint/store/earlier_attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/run_folder.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::checkpoint::store {
namespace {

using config::Resume;
using nlohmann::json;

json provenance_of(const std::string& run_dir) {
  const std::string path = run_dir + "/config.json";
  if (!std::filesystem::is_regular_file(base::path_status(path))) return {};
  try {
    return json::parse(config::json_value_in_file(path, config::kProvenanceKey), nullptr, false);
  } catch (const base::StorageError&) {
    throw;
  } catch (const base::Error&) {  // not a dtrain configuration
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

std::vector<std::string> possible_folders(const config::Config& config) {
  return config.run.dir.empty() ? config::default_run_folders(config)
                                : std::vector<std::string>{config.run.dir};
}

}  // namespace

std::optional<EarlierAttempt> find_earlier_attempt(const config::Config& config,
                                                   std::string_view provenance) {
  const json own = json::parse(provenance, nullptr, false);
  if (!is_restart(own)) return std::nullopt;
  const auto candidates = possible_folders(config);
  const auto found = std::ranges::find_if(candidates, [&](const std::string& folder) {
    const json theirs = provenance_of(folder);
    return is_same(theirs, own, "launch") && is_same(theirs, own, "command_line");
  });
  if (found == candidates.end()) return std::nullopt;
  return EarlierAttempt{.run_dir = *found,
                        .has_checkpoint = !list_steps(checkpoints_folder(*found)).empty()};
}

std::string run_key(std::string_view provenance) {
  const json own = json::parse(provenance, nullptr, false);
  const bool is_known = own.is_object() && own.contains("command_line");
  return fmt::format("{:016x}", base::hash_text(is_known ? own["command_line"].dump() : ""));
}

void refuse_rollback(const std::string& run_dir, std::int64_t found, std::int64_t committed) {
  throw base::StorageError(fmt::format(
      "run folder '{}': found {}, but the previous attempt committed step {}: the folder is "
      "missing, not mounted, or replaced by another; restore it, and continue with --resume auto",
      run_dir, found < 0 ? std::string("no checkpoint of this job") : fmt::format("step {}", found),
      committed));
}

void check_run_of_launch(const config::Config& config, std::string_view provenance,
                         std::int64_t committed) {
  const json own = json::parse(provenance, nullptr, false);
  if (committed < 0 || !is_restart(own)) return;
  const auto folders = possible_folders(config);
  const bool is_found = std::ranges::any_of(folders, [&](const std::string& folder) {
    return is_same(provenance_of(folder), own, "launch");
  });
  if (!is_found) refuse_rollback(config.run.dir.empty() ? "runs" : config.run.dir, -1, committed);
}

config::Config resume_settings(config::Config config, const EarlierAttempt& earlier) {
  Resume& resume = config.checkpoint.resume;
  config.run.dir = earlier.run_dir;
  // A fork without a checkpoint of its own begins at the other run's checkpoint again.
  const bool begins_elsewhere = resume.kind == Resume::Kind::path && !earlier.has_checkpoint;
  config.run.overwrite = begins_elsewhere;
  if (!begins_elsewhere) resume = Resume{.kind = Resume::Kind::automatic};
  return config;
}

}  // namespace dtrain::checkpoint::store
