#include "dtrain/data/tokenizer/stored_tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/data/tokenizer/hugging_face/document_end.h"

namespace dtrain::data {
namespace {

namespace fs = std::filesystem;

constexpr base::FileRole kFile{base::ErrorKind::usage, "file", "check its permissions"};

bool is_file(const fs::path& path) { return fs::is_regular_file(base::path_status(path.string())); }

// eos_token is a string or, in older files, an object with its content; empty if there is none.
std::string end_token_in(const fs::path& config) {
  if (!is_file(config)) return {};
  const auto json = nlohmann::json::parse(base::content_of(config.string(), kFile), nullptr,
                                          /*allow_exceptions=*/false);
  if (!json.is_object()) {
    base::fail(base::ErrorKind::usage, "'{}' is not a JSON object; correct or remove it",
               config.string());
  }
  const auto found = json.find("eos_token");
  if (found == json.end()) return {};
  const bool is_object = found->is_object() && found->contains("content");
  const nlohmann::json& token = is_object ? found->at("content") : *found;
  return token.is_string() ? token.get<std::string>() : std::string();
}

// Returns what `find` finds in the folder of the weights, otherwise in the folder above.
template <typename Find>
std::optional<StoredTokenizer> find_near(const std::string& weights, Find find) {
  const bool is_checkpoint = base::is_folder(weights);
  const fs::path path = is_checkpoint ? base::resolved_path(weights) : fs::absolute(weights);
  const fs::path folder = path.parent_path();
  std::optional<StoredTokenizer> found = find(folder.string());
  return found ? found : find(folder.parent_path().string());
}

}  // namespace

std::string identity_of(const StoredTokenizer& tokenizer) {
  return identity_of(kind_of_model(tokenizer.model), tokenizer.model);
}

std::shared_ptr<const Tokenizer> open_tokenizer(const StoredTokenizer& tokenizer) {
  return open_tokenizer(tokenizer.model, tokenizer.path,
                        "it is damaged: copy the tokenizer of the model there again");
}

std::string_view tokenizer_file_name(TokenizerKind kind) {
  return kTokenizerFiles[kind == TokenizerKind::hugging_face ? 1 : 0];
}

std::vector<std::pair<std::string, std::string>> files_of_tokenizer(std::string_view model) {
  if (model.empty()) return {};
  const TokenizerKind kind = kind_of_model(model);
  const std::string name(tokenizer_file_name(kind));
  if (kind != TokenizerKind::hugging_face) return {{name, std::string(model)}};
  const DocumentEnd split = split_document_end(model);
  // Other classes of transformers replace parts of tokenizer.json.
  nlohmann::ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (!split.token.empty()) config["eos_token"] = split.token;
  return {{name, std::string(split.content)},
          {std::string(kTokenizerFiles[2]), config.dump(2) + "\n"}};
}

std::optional<StoredTokenizer> tokenizer_in(const std::string& folder, TokenizerKind kind) {
  const fs::path path = fs::path(folder) / tokenizer_file_name(kind);
  if (!is_file(path)) return std::nullopt;
  std::string model = base::content_of(path.string(), kFile);
  if (kind == TokenizerKind::hugging_face) {
    const std::string end = end_token_in(fs::path(folder) / kTokenizerFiles[2]);
    if (!end.empty()) model = with_document_end(model, end);
  }
  return StoredTokenizer{.path = path.string(), .model = std::move(model)};
}

std::optional<StoredTokenizer> tokenizer_in(const std::string& folder) {
  auto found = tokenizer_in(folder, TokenizerKind::sentencepiece);
  return found ? found : tokenizer_in(folder, TokenizerKind::hugging_face);
}

std::optional<StoredTokenizer> tokenizer_near(const std::string& weights) {
  return find_near(weights, [](const std::string& folder) { return tokenizer_in(folder); });
}

std::optional<StoredTokenizer> tokenizer_near(const std::string& weights, TokenizerKind kind) {
  return find_near(weights, [&](const std::string& folder) { return tokenizer_in(folder, kind); });
}

}  // namespace dtrain::data
