#include "dtrain/config/saved_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/values/data_mixture.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;

std::string current_folder() {
  std::error_code error;
  return fs::current_path(error).string();
}

void make_absolute(std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (error) return;
  std::string text = absolute.lexically_normal().string();
  if (!is_utf8(text)) {
    base::fail(
        base::ErrorKind::usage,
        "{}: the path of the current folder '{}' is not UTF-8, so config.json cannot contain "
        "it: rename the folder, or start in another",
        path, current_folder());
  }
  path = std::move(text);
}

std::string absolute_mixture(const std::string& text) {
  std::vector<WeightedFile> files = mixture_or_file(text);
  for (WeightedFile& file : files) {
    make_absolute(file.path);
    if (files.size() == 1 || file.path.find(',') == std::string::npos) continue;
    base::fail(base::ErrorKind::usage,
               "--data {}: the path of the current folder '{}' contains a comma, which separates "
               "files in config.json: rename the folder, or give one file",
               text, current_folder());
  }
  return mixture_text(files);
}

Json json_of(Command command, const Config& config) {
  Json object = Json::object();
  for (const Setting& setting : settings()) {
    if (!setting.is_used(command, config)) continue;
    const std::size_t dot = setting.key.find('.');
    object[std::string(setting.key.substr(0, dot))][std::string(setting.key.substr(dot + 1))] =
        value_json(setting, config);
  }
  return object;
}

}  // namespace

bool SkippedCheckpoints::contains(std::int64_t step, std::string_view written_by) const {
  return written_by != run && std::ranges::find(steps, step) != steps.end();
}

Config reusable_settings(Config requested) {
  requested.run.overwrite = false;
  requested.checkpoint.resume = CheckpointConfig{}.resume;
  requested.checkpoint.new_data = false;
  requested.data.train = absolute_mixture(requested.data.train);
  for (std::string* path : {&requested.data.validation, &requested.checkpoint.init_from,
                            &requested.run.dir, &requested.machine.offload.folder}) {
    make_absolute(*path);
  }
  return requested;
}

std::string config_file_text(const Config& resolved, const StartRecord& record) {
  const Config requested = reusable_settings(record.requested.value_or(resolved));
  Json object = json_of(Command::train, requested);
  object[std::string(kResolvedKey)] = json_of(Command::train, resolved);
  object[std::string(kProvenanceKey)] = Json::parse(record.provenance);
  if (const SkippedCheckpoints& skipped = record.skipped; !skipped.steps.empty()) {
    object[std::string(kSkippedCheckpointsKey)] = {{"by", skipped.run}, {"steps", skipped.steps}};
  }
  return object.dump(2) + "\n";
}

Kernels kernels_of(const SavedRun& saved) {
  const MachineConfig& resolved = saved.resolved.machine;
  const bool was_plain = resolved.device.is_cpu() && resolved.kernels == Kernels::plain;
  const Kernels requested = saved.requested.machine.kernels;
  return requested == Kernels::automatic && was_plain ? Kernels::plain : requested;
}

SavedRun read_saved_run(const std::string& path) {
  LoadedSettings requested;
  try {
    apply_file(path, Command::train, requested);
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    base::fail(error.kind(),
               "{}; to resume the run without this file, move it away and repeat the flags of the "
               "run's first command",
               error.what());
  }
  SavedRun saved{.requested = requested.config, .resolved = requested.config};
  if (const std::string resolved = json_value_in_file(path, kResolvedKey); !resolved.empty()) {
    saved.resolved = {};
    apply_saved_settings(resolved, fmt::format("{}: {}", path, kResolvedKey), saved.resolved);
  }
  const Json provenance = Json::parse(json_value_in_file(path, kProvenanceKey), nullptr, false);
  if (provenance.is_object() && provenance.contains("ranks") &&
      provenance["ranks"].is_number_integer()) {
    saved.ranks = provenance["ranks"].get<std::int64_t>();
  }
  return saved;
}

SkippedCheckpoints skipped_checkpoints_in(std::string_view text) {
  const Json object = Json::parse(text, nullptr, false);
  SkippedCheckpoints skipped;
  try {
    skipped = {.run = object.at("by"), .steps = object.at("steps")};
  } catch (const Json::exception&) {
    return {};
  }
  return skipped;
}

std::string resumed_config_file(const Config& config) {
  const Resume& resume = config.checkpoint.resume;
  if (resume.is_none() || (resume.is_automatic() && config.run.dir.empty())) return {};
  const fs::path run = resume.is_automatic() ? config.run.dir : resume.path;
  // RUN, or RUN/checkpoints/step-N
  const fs::path checkpoints = base::resolved_path(run).parent_path();
  const bool is_checkpoint = checkpoints.filename() == "checkpoints";
  for (const fs::path& folder : {run, is_checkpoint ? checkpoints.parent_path() : run}) {
    const fs::path file = folder / "config.json";
    if (fs::is_regular_file(base::path_status(file))) return file.string();
    if (resume.is_automatic()) break;
  }
  return {};
}

std::string to_json(Command command, const Config& config) {
  return json_of(command, config).dump(2);
}

Config from_json(std::string_view text) {
  Config config;
  apply_saved_settings(text, "configuration", config);
  return config;
}

std::string model_to_json(const ModelConfig& model) {
  Config config;
  config.model = model;
  return json_of(Command::train, config).at("model").dump();
}

ModelConfig model_from_json(std::string_view json) {
  ModelConfig model = from_json(fmt::format(R"({{"model": {}}})", json)).model;
  family_of(model).check(model);
  return model;
}

std::string to_request(const Request& request) {
  Json object{{"command", name_of(request.command)},
              {"config", json_of(request.command, request.config)},
              {"provenance", Json::parse(request.record.provenance)},
              {"quiet", request.record.is_quiet},
              {"verbose", request.record.is_verbose}};
  if (request.record.requested)
    object["asked"] = json_of(request.command, *request.record.requested);
  return object.dump();
}

Request from_request(std::string_view text) {
  const Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  DTRAIN_CHECK(object.is_object() && object.contains("command") && object.contains("config"),
               "not a request: {}", text);
  const auto is_meant = [&](Command command) { return object["command"] == name_of(command); };
  const auto* command = std::ranges::find_if(kCommands, is_meant);
  DTRAIN_CHECK(command != std::end(kCommands), "unknown command in request: {}", text);
  Request request{*command, from_json(object["config"].dump())};
  if (object.contains("asked")) request.record.requested = from_json(object["asked"].dump());
  if (object.contains("provenance")) request.record.provenance = object["provenance"].dump();
  request.record.is_quiet = object.value("quiet", false);
  request.record.is_verbose = object.value("verbose", false);
  return request;
}

}  // namespace dtrain::config
