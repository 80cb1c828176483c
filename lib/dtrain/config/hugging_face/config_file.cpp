#include "dtrain/config/hugging_face/config_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/keys.h"
#include "dtrain/config/input/object_file.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;

constexpr std::string_view kModelType = "model_type";

std::string config_file_in(const std::string& folder) {
  return (std::filesystem::path(folder) / "config.json").string();
}

const HuggingFaceFormat* format_of(std::string_view model_type) {
  for (const Family* family : families()) {
    if (std::ranges::count(family->hugging_face.model_types, model_type) > 0) {
      return &family->hugging_face;
    }
  }
  return nullptr;
}

std::vector<std::string_view> known_model_types() {
  std::vector<std::string_view> types;
  for (const Family* family : families()) {
    const auto own = family->hugging_face.model_types;
    types.insert(types.end(), own.begin(), own.end());
  }
  return types;
}

// Calls f; turns its errors into errors in `path`.
template <typename F>
auto as_checkpoint_error(const std::string& path, F f) {
  try {
    return f();
  } catch (const base::Error& error) {
    if (error.kind() == ErrorKind::checkpoint) throw;
    const std::string_view message = error.what();
    const bool names_path = message.find(path) != message.npos;
    base::fail(ErrorKind::checkpoint, "{}{}", names_path ? "" : fmt::format("'{}': ", path),
               message);
  }
}

constexpr std::array kTokenIds{"bos_token_id", "eos_token_id", "pad_token_id"};

// Keys that the folder's config.json lacks stay absent: transformers has defaults for them.
Json token_ids_in(const std::string& folder) {
  const std::string path = config_file_in(folder);
  return as_checkpoint_error(path, [&] {
    const Json config = parse_object(read_text(path, path), path);
    Json ids = Json::object();
    for (const char* key : kTokenIds) {
      if (config.contains(key)) ids[key] = config.at(key);
    }
    return ids;
  });
}

Json token_ids_of(const ExportedWeights& weights) {
  if (!weights.token_ids_from.empty()) return token_ids_in(weights.token_ids_from);
  Json ids = Json::object();
  for (const char* key : kTokenIds) ids[key] = nullptr;
  if (weights.end_token) ids["eos_token_id"] = *weights.end_token;
  return ids;
}

constexpr int kIndent = 2;

}  // namespace

std::optional<ModelConfig> hugging_face_model_in(const std::string& folder) {
  const std::string path = config_file_in(folder);
  if (!base::path_exists(path)) return std::nullopt;
  return as_checkpoint_error(path, [&]() -> std::optional<ModelConfig> {
    const std::string text = read_text(path, path);
    // A configuration of dtrain, or of another program, does not describe the weights beside it.
    if (text.find(fmt::format("\"{}\"", kModelType)) == text.npos) return std::nullopt;
    const Json config = parse_object(text, path);
    const auto type = HuggingFaceKeys(config, path).text(kModelType);
    if (!type) return std::nullopt;
    const HuggingFaceFormat* const format = format_of(*type);
    if (format == nullptr) {
      HuggingFaceKeys(config, path)
          .refuse(kModelType,
                  fmt::format("but dtrain knows {}", fmt::join(known_model_types(), ", ")));
    }
    // The round trip checks ranges and consistency as for settings of a file.
    return model_from_json(model_to_json(format->model_of(config, path)));
  });
}

std::string hugging_face_config(const ModelConfig& model, const ExportedWeights& weights) {
  Json json = family_of(model).hugging_face.config_of(model);
  // transformers 5 reads dtype, version 4 torch_dtype.
  json["dtype"] = fmt::format("{}", weights.dtype);
  json["torch_dtype"] = json["dtype"];
  json.update(token_ids_of(weights));
  return json.dump(kIndent) + "\n";
}

std::string hugging_face_generation_config(const ExportedWeights& weights) {
  Json json{{"_from_model_config", true}};
  json.update(token_ids_of(weights));
  return json.dump(kIndent) + "\n";
}

}  // namespace dtrain::config
