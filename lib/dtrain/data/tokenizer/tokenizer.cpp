#include "dtrain/data/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "dtrain/base/checksum.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/text/text.h"
#include "dtrain/config/hugging_face/unsupported_models.h"
#include "dtrain/data/tokenizer/hugging_face/document_end.h"
#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

constexpr std::int64_t kNumBytes = 256;

// The first words of fingerprints, by TokenizerKind.
constexpr std::array<std::string_view, 4> kKindNames{"unknown", "bytes", "sentencepiece",
                                                     "tokenizer.json"};

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, bool /*begins_document*/,
              std::vector<std::uint32_t>& tokens) override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    tokens.insert(tokens.end(), bytes, bytes + text.size());
  }
};

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] TokenizerKind kind() const override { return TokenizerKind::bytes; }
  [[nodiscard]] std::int64_t vocab() const override { return kNumBytes; }
  [[nodiscard]] std::string_view model() const override { return {}; }
  [[nodiscard]] std::optional<std::uint32_t> end_of_document() const override { return {}; }
  [[nodiscard]] std::size_t cut(std::string_view text) const override {
    return text.empty() ? 0 : text.size() - 1;
  }
  [[nodiscard]] std::string text_of(std::int64_t token) const override {
    return {static_cast<char>(token)};
  }
  [[nodiscard]] std::unique_ptr<Encoder> make_encoder() const override {
    return std::make_unique<ByteEncoder>();
  }
};

constexpr std::string_view kTokenizerAdvice =
    "give a SentencePiece model, which dtrain data tokenizer train makes, a tokenizer.json, or a "
    "folder with one";

// Advice for a file of a Hugging Face model other than its tokenizer.json.
std::string advice_for_part(const std::filesystem::path& part) {
  const std::filesystem::path whole = part.parent_path() / "tokenizer.json";
  if (base::path_exists(whole)) return fmt::format("; give {} or its folder", whole.string());
  return fmt::format(
      ", and {} does not exist; give a tokenizer.json, which transformers' save_pretrained writes "
      "(docs/guide/data.md#hugging-face-tokenizers), or a SentencePiece model",
      whole.string());
}

// Rejects what users take for a tokenizer: names of the Hugging Face hub, GGUF files, and other files
// of a Hugging Face model than its tokenizer.json.
void reject_non_tokenizer(const std::string& path) {
  constexpr std::string_view kParts[] = {"vocab.json", "merges.txt", "tokenizer_config.json",
                                         "special_tokens_map.json", "added_tokens.json"};
  const auto reject = [&](std::string_view what) {
    base::fail(base::ErrorKind::data, "--tokenizer {}: {}", path, what);
  };
  if (!base::path_exists(path)) {
    const std::string advice = config::download_advice(path);
    if (advice.empty()) return;  // opening it fails with the reason
    reject(fmt::format("no such file or folder; {}{}", kTokenizerAdvice, advice));
  }
  const std::filesystem::path given(path);
  if (base::is_folder(path)) {
    const bool is_alone = !base::path_exists(given / "tokenizer.json");
    const std::string file = is_alone ? config::gguf_file_in(path) : std::string();
    if (!file.empty()) reject(fmt::format("{} is a GGUF file; {}", file, config::kConvertGguf));
  } else if (given.extension() == ".gguf") {
    reject(fmt::format("it is a GGUF file; {}", config::kConvertGguf));
  } else if (std::ranges::count(kParts, given.filename().string()) > 0) {
    reject("it is a part of a tokenizer" + advice_for_part(given));
  } else if (given.filename() == "config.json") {
    reject("it is a model's config.json, not a tokenizer.json" + advice_for_part(given));
  }
}

// Other tokens occur within documents, where generation would end.
void require_added_token(std::string_view model, const std::string& file,
                         const std::string& token) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> names;
  for (const AddedToken& added : parse_tokenizer_json(model, file).added_tokens) {
    if (added.content == token) return;
    if (names.size() < kShown) names.push_back(base::printable(added.content));
  }
  base::fail(
      base::ErrorKind::data,
      "--document-end \"{}\" is none of the added tokens of '{}', and its other tokens occur "
      "within documents; {}",
      base::printable(token), file,
      names.empty() ? "omit it, since there are none"
                    : "name one of them: " + base::list_text(names));
}

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  return std::make_shared<const ByteTokenizer>();
}

TokenizerKind kind_of_model(std::string_view model) {
  const auto first = model.find_first_not_of(" \t\r\n");
  // A SentencePiece model begins with the tag of its first piece, a newline, and the piece's size.
  const bool is_json = first != model.npos && model[first] == '{';
  return is_json ? TokenizerKind::hugging_face : TokenizerKind::sentencepiece;
}

std::shared_ptr<const Tokenizer> open_tokenizer(std::string model, const std::string& name,
                                                std::string_view advice) {
  return kind_of_model(model) == TokenizerKind::hugging_face
             ? open_hugging_face(std::move(model), name)
             : open_sentencepiece(std::move(model), name, advice);
}

std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& path,
                                                const std::string& document_end) {
  static constexpr base::FileRole kRole{base::ErrorKind::data, "tokenizer", kTokenizerAdvice};
  reject_non_tokenizer(path);
  const std::string file =
      base::is_folder(path) ? (std::filesystem::path(path) / "tokenizer.json").string() : path;
  std::string model = base::content_of(file, kRole);
  if (document_end.empty()) {
    return open_tokenizer(std::move(model), file, "train one with dtrain data tokenizer train");
  }
  if (kind_of_model(model) != TokenizerKind::hugging_face) {
    base::fail(base::ErrorKind::usage,
               "--document-end \"{}\" is for a tokenizer.json, and '{}' is none; leave it out: "
               "SentencePiece models have a token of their own",
               base::printable(document_end), file);
  }
  if (invalid_utf8_at(document_end)) {
    base::fail(base::ErrorKind::usage, "--document-end \"{}\" is not UTF-8; name a token",
               base::printable(document_end));
  }
  require_added_token(model, file, document_end);
  return open_tokenizer(with_document_end(model, document_end), file);
}

std::string identity_of(TokenizerKind kind, std::string_view model) {
  std::string name(kKindNames[static_cast<std::size_t>(kind)]);
  switch (kind) {
    case TokenizerKind::sentencepiece:
      return name + " xxh3 " + base::checksum_text(base::checksum_of(model));
    case TokenizerKind::hugging_face:
      return name + " xxh3 " +
             base::checksum_text(base::checksum_of(split_document_end(model).content));
    case TokenizerKind::bytes:
    case TokenizerKind::unknown:
      break;
  }
  return name;
}

TokenizerKind kind_of_identity(std::string_view identity) {
  const auto* const found = std::ranges::find(kKindNames, identity.substr(0, identity.find(' ')));
  return found == kKindNames.end() ? TokenizerKind::unknown
                                   : static_cast<TokenizerKind>(found - kKindNames.begin());
}

std::vector<std::int64_t> prompt_tokens(const Tokenizer& tokenizer, std::string_view text,
                                        std::string_view name) {
  if (tokenizer.kind() != TokenizerKind::bytes && invalid_utf8_at(text)) {
    base::fail(base::ErrorKind::data,
               "{} is not UTF-8 at byte {}, but the model's tokenizer needs UTF-8", name,
               *invalid_utf8_at(text));
  }
  std::vector<std::uint32_t> tokens;
  if (text.empty() && tokenizer.end_of_document()) {
    tokens.push_back(*tokenizer.end_of_document());
  } else {
    tokenizer.make_encoder()->encode(text.empty() ? "\n" : text, true, tokens);
  }
  if (tokens.empty() && tokenizer.kind() == TokenizerKind::hugging_face) {
    base::fail(base::ErrorKind::data,
               "{} has no tokens: the model's tokenizer drops {}; give another prompt", name,
               text.empty() ? "the newline that stands for an empty prompt" : "all of its text");
  }
  if (tokens.empty()) tokens.push_back(0);  // SentencePiece's normalization left no text
  return {tokens.begin(), tokens.end()};
}

// A model of n positions generates n tokens after one: it is not fed the last.
std::int64_t prompt_length(std::string_view text, std::span<const std::int64_t> tokens) {
  return std::ssize(tokens) - (text.empty() ? 1 : 0);
}

}  // namespace dtrain::data
