// A tokenizer for SentencePiece models. Each thread caches the tokens of words that it has seen, so
// most of a text never reaches SentencePiece.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/host/plugin_file.h"
#include "dtrain/data/tokenizer/sentencepiece_library.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

/// A model loaded with three settings of its normalizer's add_dummy_prefix: the model's own, for
/// the beginning of a document; off, for later parts; on, for words stripped of leading spaces
/// because the model merges runs of spaces.
struct ModelVariants {
  std::unique_ptr<SentencePieceModel> own;
  std::unique_ptr<SentencePieceModel> without_prefix;
  std::unique_ptr<SentencePieceModel> with_prefix;
};

constexpr std::string_view kSample =
    "The quick brown fox,  3 times:\njumps over (the)   lazy dogs. E.g. 2024-01-02;\nit's a "
    "\"word\" "
    "and another_one @ home\nend";

/// Characters that SentencePiece's normalizers neither delete, nor map to a space, nor merge with
/// an adjacent space or newline.
struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kVisible[] = {
    {U'!', U'~'},     {0xAB, 0xAB},     {0xBB, 0xBB},      // ASCII, quotation marks
    {0xC0, 0x2AF},    {0x388, 0x3FF},   {0x400, 0x481},    // Latin, Greek, Cyrillic
    {0x48A, 0x52F},   {0x531, 0x556},   {0x561, 0x587},    // Cyrillic, Armenian
    {0x5D0, 0x5EA},   {0x620, 0x64A},   {0x660, 0x669},    // Hebrew, Arabic
    {0x671, 0x6D3},   {0x904, 0x939},   {0x964, 0x96F},    // Arabic, Devanagari
    {0xE01, 0xE30},   {0xE40, 0xE46},   {0x2013, 0x2014},  // Thai, dashes
    {0x2018, 0x201F}, {0x2026, 0x2026}, {0x3001, 0x3002},  // quotation marks, full stops
    {0x3008, 0x3011}, {0x3041, 0x3096}, {0x30A1, 0x30FA},  // brackets, kana
    {0x30FC, 0x30FC}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF},  // Han
    {0xAC00, 0xD7A3}, {0xFF01, 0xFF5E}};                   // Hangul, wide forms of ASCII

bool is_visible(char32_t character) {
  const auto* const range = std::ranges::lower_bound(kVisible, character, {}, &Range::last);
  return range != std::end(kVisible) && range->first <= character;
}
bool begins_visible(std::string_view text) { return is_visible(first_character(text)); }
bool ends_visible(std::string_view text) { return is_visible(last_character(text)); }

std::vector<int> ids_of(const SentencePieceModel& model, std::string_view text) {
  std::vector<int> ids;
  std::string error;
  if (!model.encode(text, ids, error)) {
    fail(ErrorKind::internal, "SentencePiece: {}", error);
  }
  return ids;
}

std::vector<int> joined(std::vector<int> first, const std::vector<int>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Returns whether a space follows another character.
bool holds_space_within(std::string_view piece) {
  while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
  return piece.find(kSpaceMark) != piece.npos || piece.find(' ') != piece.npos;
}

bool holds_newline_within(std::string_view piece) {
  return piece.find('\n') != piece.npos && piece.find_first_not_of('\n') != piece.npos;
}

template <typename Condition>
bool any_piece(const SentencePieceModel& model, Condition condition) {
  for (int id = 0; id < model.size(); ++id) {
    if (model.kind(id) == SentencePieceModel::Kind::normal && condition(model.piece(id)))
      return true;
  }
  return false;
}

bool has_unknown(const SentencePieceModel& model, const std::vector<int>& ids) {
  return std::ranges::any_of(
      ids, [&](int id) { return model.kind(id) == SentencePieceModel::Kind::unknown; });
}

/// Returns whether the model has a piece for a single space, which keeps unknown characters before
/// and after a space from merging into one token.
bool knows_space(const SentencePieceModel& model) {
  return any_piece(model, [](std::string_view piece) { return piece == kSpaceMark; });
}

/// Finds positions in a text that no piece of the model can span: before spaces or at newlines,
/// between visible ASCII characters, letters and characters of other scripts. There are none if the
/// model has pieces with a space after another character, or normalization rules of its own. The
/// constructor verifies that a sample text yields the same tokens whole and in parts.
///
/// Threads: any.
class CutPoints {
 public:
  CutPoints(const ModelVariants& models, std::string_view file);

  /// Returns whether `text` may be cut before `at`, 0 < at < text.size().
  [[nodiscard]] bool may_cut(std::string_view text, std::size_t at) const;
  /// Encodes a part with the model variant for its position.
  ///
  /// Throws: Error{internal} if SentencePiece fails.
  [[nodiscard]] std::vector<int> encode(const ModelVariants& models, std::string_view part,
                                        bool begins_document) const;

 private:
  enum class Newline { no_cut, is_space, is_token };
  // Returns whether the model treats this byte as a space.
  [[nodiscard]] bool is_space(char first) const {
    return first == ' ' || (first == '\n' && newline_ == Newline::is_space);
  }
  [[nodiscard]] bool preserves_tokens(const ModelVariants& models) const;

  bool cuts_at_spaces_ = false;
  bool merges_spaces_ = false;  // encodes a run of spaces as one
  Newline newline_ = Newline::no_cut;
};

// NormalizerSpec.name of a model trained with --normalization_rule_tsv: field 1, 12 bytes. A piece
// of this name has the same encoding; such a false positive only disables cutting.
bool has_custom_normalization(std::string_view file) {
  return file.find("\x0a\x0cuser_defined") != file.npos;
}

CutPoints::CutPoints(const ModelVariants& models, std::string_view file) {
  if (has_custom_normalization(file)) return;
  const SentencePieceModel& own = *models.own;
  cuts_at_spaces_ = knows_space(own) && !any_piece(own, holds_space_within);
  merges_spaces_ = ids_of(own, "a  b") == ids_of(own, "a b");
  const std::vector<int> alone = ids_of(*models.without_prefix, "\n");
  if (cuts_at_spaces_ && ids_of(own, "a\nb") == ids_of(own, "a b")) {
    newline_ = Newline::is_space;
  } else if (!alone.empty() && !has_unknown(own, alone) && !any_piece(own, holds_newline_within) &&
             ids_of(own, "a\nb") ==
                 joined(joined(ids_of(own, "a"), alone), ids_of(*models.without_prefix, "b"))) {
    newline_ = Newline::is_token;
  }
  if (!preserves_tokens(models)) {
    cuts_at_spaces_ = false;
    newline_ = Newline::no_cut;
  }
}

bool CutPoints::may_cut(std::string_view text, std::size_t at) const {
  const std::string_view before = text.substr(0, at);
  const std::string_view rest = text.substr(at);
  if (is_space(rest.front())) {
    if (!cuts_at_spaces_ || !ends_visible(before)) return false;
    std::size_t end = 1;
    while (end < rest.size() && is_space(rest[end])) ++end;
    return begins_visible(rest.substr(end));
  }
  return newline_ == Newline::is_token && ((rest.front() == '\n' && ends_visible(before)) ||
                                           (before.back() == '\n' && begins_visible(rest)));
}

std::vector<int> CutPoints::encode(const ModelVariants& models, std::string_view part,
                                   bool begins_document) const {
  if (begins_document) return ids_of(*models.own, part);
  std::size_t spaces = 0;
  while (spaces < part.size() && is_space(part[spaces])) ++spaces;
  const bool is_word = 0 < spaces && begins_visible(part.substr(spaces));
  if (!is_word || !merges_spaces_) return ids_of(*models.without_prefix, part);
  return ids_of(*models.with_prefix, part.substr(spaces));
}

bool CutPoints::preserves_tokens(const ModelVariants& models) const {
  std::vector<int> in_parts;
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= kSample.size(); ++at) {
    if (at < kSample.size() && !may_cut(kSample, at)) continue;
    in_parts =
        joined(std::move(in_parts), encode(models, kSample.substr(begin, at - begin), begin == 0));
    begin = at;
  }
  return in_parts == ids_of(*models.own, kSample);
}

/// Bytes appended to a serialized model to override add_dummy_prefix: protobuf merges a repeated
/// message field by field (ModelProto.normalizer_spec is field 3, and so is
/// NormalizerSpec.add_dummy_prefix).
constexpr std::string_view kWithoutPrefix("\x1a\x02\x18\x00", 4);
constexpr std::string_view kWithPrefix("\x1a\x02\x18\x01", 4);

/// Removes a protobuf varint from the beginning of `bytes`; empty if there is none.
std::optional<std::uint64_t> take_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

/// Returns a serialized model without ModelProto.self_test_data (field 4): SentencePiece rejects a
/// model that encodes these samples otherwise than with its own add_dummy_prefix. All fields of a
/// ModelProto are messages; from another or a damaged field on, the model is returned unchanged.
std::string without_self_test(std::string_view model) {
  constexpr std::uint64_t kMessage = 2;  // wire type
  constexpr std::uint64_t kSelfTest = 4 << 3 | kMessage;
  std::string kept;
  while (!model.empty()) {
    std::string_view rest = model;
    const auto tag = take_varint(rest);
    const auto size = tag && (*tag & 7) == kMessage ? take_varint(rest) : std::nullopt;
    if (!size || *size > rest.size()) break;
    const std::size_t end = model.size() - rest.size() + *size;
    if (*tag != kSelfTest) kept.append(model.substr(0, end));
    model.remove_prefix(end);
  }
  return kept.append(model);
}

// advice: what to do if it is no model; may be empty.
std::unique_ptr<SentencePieceModel> load(const std::string& model, const std::string& name,
                                         std::string_view advice) {
  std::string error;
  auto loaded = sentencepiece_library().load(model, error);
  if (loaded == nullptr) {
    fail(ErrorKind::data,
         "tokenizer '{}' is neither a SentencePiece model{} nor a tokenizer.json{}{}", name,
         error.find(".cc(") == error.npos ? fmt::format(" ({})", error) : "",
         advice.empty() ? "" : "; ", advice);
  }
  return loaded;
}

ModelVariants load_models(const std::string& model, const std::string& name,
                          std::string_view advice) {
  const std::string untested = without_self_test(model);
  return {.own = load(model, name, advice),
          .without_prefix = load(untested + std::string(kWithoutPrefix), name, advice),
          .with_prefix = load(untested + std::string(kWithPrefix), name, advice)};
}

/// Returns a piece as text, with spaces in place of kSpaceMark.
std::string with_spaces(std::string_view piece) {
  std::string text;
  for (auto at = piece.find(kSpaceMark); at != piece.npos; at = piece.find(kSpaceMark)) {
    text.append(piece.substr(0, at)).push_back(' ');
    piece.remove_prefix(at + kSpaceMark.size());
  }
  return text.append(piece);
}

/// Allows lookup by string_view without a copy.
struct WordHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
};

class SentencePieceEncoder final : public Encoder {
 public:
  SentencePieceEncoder(const ModelVariants& models, const CutPoints& cuts)
      : models_(models), cuts_(cuts), is_unigram_(models.own->is_unigram()) {}

  void encode(std::string_view text, bool begins_document,
              std::vector<std::uint32_t>& tokens) override {
    if (is_unigram_ && begins_document && text.size() <= kMaxEncodeBytes) {
      return add(text, begins_document, tokens);
    }
    std::size_t begin = 0;
    for (std::size_t at = 1; at <= text.size(); ++at) {
      const bool is_long = at - begin >= kMaxEncodeBytes && at < text.size() &&
                           whole_characters(text.substr(0, at)) == at;
      if (at < text.size() && !is_long && !cuts_.may_cut(text, at)) continue;
      add(text.substr(begin, at - begin), begins_document && begin == 0, tokens);
      begin = at;
    }
  }

 private:
  void add(std::string_view part, bool begins_document, std::vector<std::uint32_t>& tokens) {
    constexpr std::size_t kLongestWord = 48;  // bytes
    constexpr std::size_t kMaxWords = 1 << 16;
    // A word's leading space is part of the key: its tokens differ with and without it.
    const bool is_word = !begins_document && part.size() <= kLongestWord;
    if (const auto found = is_word ? words_.find(part) : words_.end(); found != words_.end()) {
      tokens.insert(tokens.end(), found->second.begin(), found->second.end());
      return;
    }
    const std::vector<int> ids = cuts_.encode(models_, part, begins_document);
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    if (!is_word) return;
    if (words_.size() == kMaxWords) words_.clear();
    words_.emplace(part, ids);
  }

  const ModelVariants& models_;
  const CutPoints& cuts_;
  bool is_unigram_;
  // Caches the tokens of recent short texts.
  std::unordered_map<std::string, std::vector<int>, WordHash, std::equal_to<>> words_;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name, std::string_view advice)
      : model_(std::move(model)),
        models_(load_models(model_, name, advice)),
        cuts_(models_, model_) {}

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
    return text.size() > kMaxEncodeBytes ? whole_characters(text.substr(0, text.size() - 1)) : 0;
  }

  [[nodiscard]] std::string text_of(std::int64_t token) const override {
    const int id = base::narrow<int>(token);
    DTRAIN_CHECK(0 <= id && id < models_.own->size(), "token {} of {}", id, models_.own->size());
    const std::string piece = models_.own->piece(id);
    switch (models_.own->kind(id)) {
      case SentencePieceModel::Kind::control:
        return {};
      case SentencePieceModel::Kind::unknown:
        return " \xE2\x81\x87 ";  // SentencePiece's symbol for unknown pieces
      case SentencePieceModel::Kind::byte:
        return {byte_of(piece)};
      case SentencePieceModel::Kind::normal:
      case SentencePieceModel::Kind::unused:
        break;
    }
    return with_spaces(piece);
  }

  [[nodiscard]] std::unique_ptr<Encoder> make_encoder() const override {
    return std::make_unique<SentencePieceEncoder>(models_, cuts_);
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
  ModelVariants models_;
  CutPoints cuts_;
};

}  // namespace

SentencePieceLibrary& sentencepiece_library() {
  using Entry = SentencePieceLibrary& (*)();
  static const base::PluginFile file =
      base::open_isolated("libdtrain-sentencepiece.so", "dtrain_sentencepiece_library");
  if (file.entry == nullptr) {
    base::fail(base::ErrorKind::usage,
               "cannot load SentencePiece through {}: {}; install Debian's libsentencepiece-dev "
               "(scripts/setup.sh) and build again",
               file.path, file.obstacle);
  }
  return reinterpret_cast<Entry>(file.entry)();
}

std::shared_ptr<const Tokenizer> open_sentencepiece(std::string model, const std::string& name,
                                                    std::string_view advice) {
  return std::make_shared<const SentencePieceTokenizer>(std::move(model), name, advice);
}

}  // namespace dtrain::data
