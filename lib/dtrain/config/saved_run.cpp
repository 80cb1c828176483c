#include "dtrain/config/saved_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/values/data_mixture.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;

void make_absolute(std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  if (!error) path = absolute.lexically_normal().string();
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

bool PassedOver::holds(std::int64_t step, std::string_view written_by) const {
  return written_by != run && std::ranges::find(steps, step) != steps.end();
}

Config reusable(Config asked) {
  asked.run.overwrite = false;
  asked.checkpoint.resume = CheckpointConfig{}.resume;
  asked.checkpoint.new_data = false;
  if (!asked.data.train.empty()) {
    std::vector<WeightedFile> files = parse_mixture(asked.data.train);
    for (WeightedFile& file : files) make_absolute(file.path);
    asked.data.train = mixture_text(files);
  }
  for (std::string* path : {&asked.data.validation, &asked.checkpoint.init_from, &asked.run.dir,
                            &asked.machine.offload.folder}) {
    make_absolute(*path);
  }
  return asked;
}

std::string saved_text(const Config& resolved, const StartRecord& record) {
  const Config asked = reusable(record.asked.value_or(resolved));
  Json object = json_of(Command::train, asked);
  object[std::string(kResolvedKey)] = json_of(Command::train, resolved);
  object[std::string(kProvenanceKey)] = Json::parse(record.provenance);
  if (const PassedOver& passed = record.passed_over; !passed.steps.empty()) {
    object[std::string(kPassedOverKey)] = {{"by", passed.run}, {"steps", passed.steps}};
  }
  return object.dump(2) + "\n";
}

SavedRun read_saved_run(const std::string& path) {
  Loaded asked;
  try {
    apply_file(path, Command::train, asked);
  } catch (const base::Error& error) {
    if (error.kind() != base::ErrorKind::usage) throw;
    base::fail(error.kind(),
               "{}; to resume the run without this file, move it away and give the flags of the "
               "run's first command",
               error.what());
  }
  SavedRun saved{.asked = asked.config, .resolved = asked.config};
  if (const std::string resolved = value_in_file(path, kResolvedKey); !resolved.empty()) {
    saved.resolved = {};
    apply_text(resolved, fmt::format("{}: {}", path, kResolvedKey), saved.resolved);
  }
  const Json provenance = Json::parse(value_in_file(path, kProvenanceKey), nullptr, false);
  if (provenance.is_object() && provenance.contains("ranks") &&
      provenance["ranks"].is_number_integer()) {
    saved.ranks = provenance["ranks"].get<std::int64_t>();
  }
  return saved;
}

PassedOver passed_over_in(std::string_view text) {
  const Json object = Json::parse(text, nullptr, false);
  PassedOver passed;
  try {
    passed = {.run = object.at("by"), .steps = object.at("steps")};
  } catch (const Json::exception&) {
    return {};
  }
  return passed;
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
  apply_text(text, "configuration", config);
  return config;
}

std::string to_request(const Request& request) {
  Json object{{"command", name_of(request.command)},
              {"config", json_of(request.command, request.config)},
              {"provenance", Json::parse(request.record.provenance)},
              {"quiet", request.record.is_quiet},
              {"verbose", request.record.is_verbose}};
  if (request.record.asked) object["asked"] = json_of(request.command, *request.record.asked);
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
  if (object.contains("asked")) request.record.asked = from_json(object["asked"].dump());
  if (object.contains("provenance")) request.record.provenance = object["provenance"].dump();
  request.record.is_quiet = object.value("quiet", false);
  request.record.is_verbose = object.value("verbose", false);
  return request;
}

}  // namespace dtrain::config
