// Reads and writes a config.json of Hugging Face in tests.
#pragma once

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "dtrain/config/family.h"
#include "dtrain/config/hugging_face/config_file.h"
#include "dtrain/config/saved_run.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::config::hugging_face_test {

inline Json with(Json config, const Json& keys) {
  config.update(keys);
  return config;
}

inline ModelConfig read(const Json& config) {
  const testing::TempFolder folder;
  folder.write("config.json", config.dump());
  return hugging_face_model_in(folder.path("")).value();
}

inline std::string refusal_of_text(const std::string& text) {
  const testing::TempFolder folder;
  folder.write("config.json", text);
  const std::string message = testing::message_of(
      base::ErrorKind::checkpoint, [&] { (void)hugging_face_model_in(folder.path("")); });
  CHECK_THAT(message, testing::Names(folder.path("config.json")));
  return message;
}

inline std::string refusal(const Json& config) { return refusal_of_text(config.dump()); }

inline std::string text_of(const ModelConfig& model) {
  Config config;
  config.model = model;
  return to_json(Command::train, config);
}

inline Json written(const ModelConfig& model, const ExportedWeights& weights = {}) {
  return Json::parse(hugging_face_config(model, weights));
}

}  // namespace dtrain::config::hugging_face_test
