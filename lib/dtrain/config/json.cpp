#include "dtrain/config/json.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/file.h"

namespace dtrain::config {
namespace {

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
