// The tokenizer of a SentencePiece model. Words come again and again, so that a thread remembers
// the tokens of those that it met: most of a text never reaches SentencePiece.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/tokenizer/piece_cuts.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

/// What protobuf appends to a model so that its normalizer's add_dummy_prefix reads anew: a message
/// that comes twice is merged, field by field (ModelProto.normalizer_spec is field 3, and
/// NormalizerSpec.add_dummy_prefix too).
constexpr std::string_view kWithoutPrefix("\x1a\x02\x18\x00", 4);
constexpr std::string_view kWithPrefix("\x1a\x02\x18\x01", 4);

std::unique_ptr<PieceModel> load(const std::string& model, const std::string& name) {
  std::string obstacle;
  auto loaded = piece_library().load(model, obstacle);
  if (loaded == nullptr) {
    fail(
        ErrorKind::data,
        "tokenizer '{}' is not a SentencePiece model{}{}; give one, as dtrain data tokenizer train "
        "makes it",
        name, obstacle.find(".cc(") == obstacle.npos ? fmt::format(" ({})", obstacle) : "",
        model.starts_with('{') ? ", but JSON: the tokenizer.json of Hugging Face is not read" : "");
  }
  return loaded;
}

PieceModels load_models(const std::string& model, const std::string& name) {
  return {.own = load(model, name),
          .bare = load(model + std::string(kWithoutPrefix), name),
          .spaced = load(model + std::string(kWithPrefix), name)};
}

/// A piece as text, with spaces for their mark.
std::string with_spaces(std::string_view piece) {
  std::string text;
  while (!piece.empty()) {
    const bool is_space = piece.starts_with(kSpaceMark);
    text.push_back(is_space ? ' ' : piece.front());
    piece.remove_prefix(is_space ? kSpaceMark.size() : 1);
  }
  return text;
}

/// The tokens of short texts that were met lately.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 48;  // bytes

  /// Null where the word is not remembered; else (tokens, how many).
  [[nodiscard]] std::optional<std::pair<const std::uint32_t*, std::size_t>> find(
      std::string_view word) const {
    const auto found = words_.find(word);
    if (found == words_.end()) return std::nullopt;
    return std::pair(tokens_.data() + found->second.begin, found->second.count);
  }

  void add(std::string_view word, const std::vector<int>& ids) {
    constexpr std::size_t kMaxWords = 1 << 16;
    if (words_.size() == kMaxWords) {
      words_.clear();
      tokens_.clear();
    }
    words_.emplace(word, Range{tokens_.size(), ids.size()});
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  }

 private:
  struct Range {
    std::size_t begin;
    std::size_t count;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, Range, Hash, std::equal_to<>> words_;
  std::vector<std::uint32_t> tokens_;
};

class PieceEncoder final : public Encoder {
 public:
  PieceEncoder(const PieceModels& models, const PieceCuts& cuts) : models_(models), cuts_(cuts) {}

  void encode(std::string_view text, bool begins_document,
              std::vector<std::uint32_t>& tokens) override {
    std::size_t begin = 0;
    for (std::size_t at = 1; at <= text.size(); ++at) {
      const bool is_long = at - begin >= kLongestPart && at < text.size() &&
                           whole_characters(text.substr(0, at)) == at;
      if (at < text.size() && !is_long && !cuts_.may_cut(text, at)) continue;
      add(text.substr(begin, at - begin), begins_document && begin == 0, tokens);
      begin = at;
    }
  }

 private:
  void add(std::string_view part, bool begins_document, std::vector<std::uint32_t>& tokens) {
    // The same word means other tokens behind a space, which is part of it here, than elsewhere.
    const bool is_word = !begins_document && part.size() <= WordCache::kLongestWord;
    if (is_word) {
      if (const auto found = words_.find(part)) {
        tokens.insert(tokens.end(), found->first, found->first + found->second);
        return;
      }
    }
    const std::vector<int> ids = encode_part(models_, cuts_, part, begins_document);
    if (is_word) words_.add(part, ids);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

  const PieceModels& models_;
  const PieceCuts& cuts_;
  WordCache words_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name)
      : model_(std::move(model)), models_(load_models(model_, name)), cuts_(models_) {}

  [[nodiscard]] TokenizerKind kind() const override { return TokenizerKind::sentencepiece; }
  [[nodiscard]] std::int64_t vocab() const override { return models_.own->size(); }
  [[nodiscard]] std::string_view model() const override { return model_; }
  [[nodiscard]] std::optional<std::uint32_t> end_of_document() const override {
    const int id = models_.own->end_id();
    return id < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(id));
  }

  [[nodiscard]] std::size_t cut(std::string_view text) const override {
    if (text.empty()) return 0;
    for (std::size_t at = text.size() - 1; at > 0; --at) {
      if (cuts_.may_cut(text, at)) return at;
    }
    return text.size() > kLongestPart ? whole_characters(text.substr(0, text.size() - 1)) : 0;
  }

  [[nodiscard]] std::string text_of(std::int64_t token) const override {
    const int id = base::narrow<int>(token);
    DTRAIN_CHECK(0 <= id && id < models_.own->size(), "token {} of {}", id, models_.own->size());
    const std::string piece = models_.own->piece(id);
    switch (models_.own->kind(id)) {
      case PieceModel::Kind::control:
        return {};
      case PieceModel::Kind::unknown:
        return " \xE2\x81\x87 ";  // SentencePiece's sign for it
      case PieceModel::Kind::byte:
        return {byte_of(piece)};
      case PieceModel::Kind::normal:
      case PieceModel::Kind::unused:
        break;
    }
    return with_spaces(piece);
  }

  [[nodiscard]] std::unique_ptr<Encoder> make_encoder() const override {
    return std::make_unique<PieceEncoder>(models_, cuts_);
  }

 private:
  // "<0x0A>"
  static char byte_of(const std::string& piece) {
    unsigned byte = 0;
    constexpr std::size_t kDigits = 3;
    DTRAIN_CHECK(piece.size() == kDigits + 3, "piece {}", piece);
    std::from_chars(piece.data() + kDigits, piece.data() + kDigits + 2, byte, 16);
    return static_cast<char>(byte);
  }

  std::string model_;
  PieceModels models_;
  PieceCuts cuts_;
};

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(std::string model, const std::string& name) {
  return std::make_shared<const SentencePieceTokenizer>(std::move(model), name);
}

}  // namespace dtrain::data
