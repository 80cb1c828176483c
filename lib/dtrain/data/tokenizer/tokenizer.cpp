#include "dtrain/data/tokenizer/tokenizer.h"

#include <span>

#include "dtrain/base/checksum.h"
#include "dtrain/base/io/input_file.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

constexpr std::int64_t kNumBytes = 256;

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

}  // namespace

std::shared_ptr<const Tokenizer> byte_tokenizer() {
  return std::make_shared<const ByteTokenizer>();
}

std::shared_ptr<const Tokenizer> read_tokenizer(const std::string& path) {
  static constexpr base::FileRole kRole{
      base::ErrorKind::data, "tokenizer",
      "give a SentencePiece model; dtrain data tokenizer train makes one"};
  const auto file = base::InputFile::open(path, kRole);
  std::string model(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(model)));
  return open_tokenizer(model, path);
}

std::string identity_of(TokenizerKind kind, std::string_view model) {
  switch (kind) {
    case TokenizerKind::bytes:
      return "bytes";
    case TokenizerKind::sentencepiece:
      return "sentencepiece xxh3 " + base::checksum_text(base::checksum_of(model));
    case TokenizerKind::unknown:
      break;
  }
  return "unknown";
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
  if (tokens.empty()) tokens.push_back(0);  // the tokenizer's normalization left no text
  return {tokens.begin(), tokens.end()};
}

}  // namespace dtrain::data
