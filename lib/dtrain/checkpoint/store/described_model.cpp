#include "dtrain/checkpoint/store/described_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/checkpoint/store/names.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::checkpoint::store {

config::ModelConfig parse_description(std::string_view json, const std::string& origin) {
  try {
    return config::model_from_json(json);
  } catch (const base::Error& error) {
    base::fail(base::ErrorKind::checkpoint, "{}: {}", origin, error.what());
  }
}

std::optional<config::ModelConfig> described_model(const format::WeightFile& file) {
  const auto found = file.metadata().find(kModelKey);
  if (found == file.metadata().end()) {
    return config::hugging_face_model_in(base::parent_folder(file.path()));
  }
  return parse_description(
      found->second, fmt::format("model file '{}': bad metadata '{}'", file.path(), kModelKey));
}

config::ModelConfig described_model(const Reader& reader) {
  const auto config = nlohmann::ordered_json::parse(reader.manifest().config);
  const auto model = config.value("model", nlohmann::ordered_json::object());
  return parse_description(model.dump(),
                           fmt::format("checkpoint '{}': bad configuration", reader.path()));
}

}  // namespace dtrain::checkpoint::store
