#include "dtrain/data/tokenizer/hugging_face/document_end.h"

#include <nlohmann/json.hpp>

namespace dtrain::data {

// A tokenizer.json is one JSON object and has no field eos_token, so it cannot end with such a line.
constexpr std::string_view kBegin = "\n{\"eos_token\":";

DocumentEnd split_document_end(std::string_view model) {
  const auto at = model.rfind(kBegin);
  if (at == model.npos) return {.content = model, .token = {}};
  const auto line = nlohmann::json::parse(model.substr(at), nullptr, /*allow_exceptions=*/false);
  const bool is_line = line.is_object() && line.size() == 1 && line["eos_token"].is_string();
  if (!is_line) return {.content = model, .token = {}};
  return {.content = model.substr(0, at), .token = line["eos_token"].get<std::string>()};
}

std::string with_document_end(std::string_view model, std::string_view token) {
  std::string result(split_document_end(model).content);
  if (token.empty()) return result;
  return result + "\n" + nlohmann::json{{"eos_token", token}}.dump();
}

}  // namespace dtrain::data
