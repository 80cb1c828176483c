// The tokenizer of a tokenizer.json: added tokens, normalization, words, byte pairs.
#include "dtrain/data/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/data/tokenizer/hugging_face/added_tokens.h"
#include "dtrain/data/tokenizer/hugging_face/byte_alphabet.h"
#include "dtrain/data/tokenizer/hugging_face/byte_pairs.h"
#include "dtrain/data/tokenizer/hugging_face/document_end.h"
#include "dtrain/data/tokenizer/hugging_face/pre_tokenizer.h"
#include "dtrain/data/tokenizer/hugging_face/tokenizer_json.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_library.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_ranges.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using Tokens = std::vector<std::uint32_t>;

/// The data that encoders share. Threads: any number of callers.
struct Rules {
  Rules(const TokenizerJson& json, const std::string& name);

  BytePairs pairs;
  PreTokenizer words;
  AddedTokens added;             // found in the text
  AddedTokens added_normalized;  // found in the normalized text
  const UnicodeLibrary* nfc;     // null without a normalizer
};

// The added tokens that are found in the normalized text, or the others.
std::vector<AddedToken> added_tokens_of(const TokenizerJson& json, bool are_normalized,
                                        const std::string& name) {
  std::vector<AddedToken> tokens;
  std::unordered_map<std::string, std::string> contents;
  for (AddedToken token : json.added_tokens) {
    if (token.is_normalized != are_normalized) continue;
    const std::string content = token.content;
    std::string normalized;
    if (are_normalized && json.uses_nfc &&
        unicode_library().normalize(content, normalized, nullptr)) {
      token.content = normalized;
    }
    const auto [other, is_new] = contents.emplace(token.content, content);
    if (!is_new) {
      base::fail(base::ErrorKind::data,
                 "tokenizer '{}': the added tokens \"{}\" and \"{}\" are the same in NFC", name,
                 base::printable(other->second), base::printable(content));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Rules::Rules(const TokenizerJson& json, const std::string& name)
    : pairs(json.model),
      words(json, name),
      added(added_tokens_of(json, false, name)),
      added_normalized(added_tokens_of(json, true, name)),
      nfc(json.uses_nfc ? &unicode_library() : nullptr) {}

class HuggingFaceEncoder final : public Encoder {
 public:
  explicit HuggingFaceEncoder(std::shared_ptr<const Rules> rules)
      : rules_(std::move(rules)),
        added_(rules_->added),
        added_normalized_(rules_->added_normalized),
        splitter_(rules_->words) {}

  void encode(std::string_view text, bool begins_document, Tokens& tokens) override {
    each_segment(added_, text, tokens, [&](std::string_view segment, bool follows_token) {
      const bool begins = begins_document || follows_token;
      std::string normalized;
      if (rules_->nfc != nullptr && rules_->nfc->normalize(segment, normalized, nullptr)) {
        segment = normalized;
      }
      each_segment(added_normalized_, segment, tokens,
                   [&](std::string_view part, bool part_follows_token) {
                     splitter_.split(part, begins || part_follows_token,
                                     [&](std::string_view word) { add(word, tokens); });
                   });
    });
  }

 private:
  // Appends the added tokens of a text, and calls visit(segment, follows_token) between them.
  template <typename Visit>
  static void each_segment(AddedTokenFinder& added, std::string_view text, Tokens& tokens,
                           Visit visit) {
    std::size_t end = 0;
    bool follows_token = false;
    for (const AddedTokenFinder::Found& found : added.find(text)) {
      if (end < found.range.begin) {
        visit(text.substr(end, found.range.begin - end), follows_token);
      }
      tokens.push_back(found.id);
      end = found.range.end;
      follows_token = true;
    }
    if (end < text.size()) visit(text.substr(end), follows_token);
  }

  void add(std::string_view word, Tokens& tokens) {
    constexpr std::size_t kLongestWord = 48;  // bytes
    constexpr std::size_t kMaxWords = 1 << 16;
    if (word.size() > kLongestWord) return rules_->pairs.encode(word, buffers_, tokens);
    if (const auto found = cache_.find(word); found != cache_.end()) {
      tokens.insert(tokens.end(), found->second.begin(), found->second.end());
      return;
    }
    const auto before = std::ssize(tokens);
    rules_->pairs.encode(word, buffers_, tokens);
    if (cache_.size() == kMaxWords) cache_.clear();
    cache_.emplace(word, Tokens(tokens.begin() + before, tokens.end()));
  }

  std::shared_ptr<const Rules> rules_;
  AddedTokenFinder added_;
  AddedTokenFinder added_normalized_;
  WordSplitter splitter_;
  BytePairBuffers buffers_;
  TextMap<Tokens> cache_;  // the tokens of recent short words
};

/// Finds where texts can be cut. Threads: one caller.
class CutSearch {
 public:
  /// text: UTF-8.
  CutSearch(const Rules& rules, std::string_view text) : rules_(rules), text_(text) {}

  /// Returns the last position that does not change tokens, whatever follows the text; 0 if there
  /// is none.
  std::size_t find() {
    // With both, positions of tokens in the text are unknown.
    if (rules_.nfc != nullptr && !rules_.added_normalized.is_empty()) return 0;
    find_segment();
    std::string_view segment = text_.substr(begin_, end_ - begin_);
    std::string normalized;
    std::vector<Replacement> changes;
    if (rules_.nfc != nullptr && rules_.nfc->normalize(segment, normalized, &changes)) {
      segment = normalized;
    }
    const std::size_t at = WordSplitter(rules_.words).last_cut(segment, [&](std::size_t position) {
      const auto source = position_before(position, changes);
      return source && keeps_tokens(begin_ + *source);
    });
    return at == 0 ? 0 : begin_ + *position_before(at, changes);
  }

 private:
  // Finds the end of the text that no added token interrupts, as far as the text decides.
  void find_segment() {
    const std::size_t longest = std::max(rules_.added.longest(), rules_.added_normalized.longest());
    end_ = text_.size() - std::min(text_.size(), 2 * longest + 1);
    for (const AddedTokens* added : {&rules_.added, &rules_.added_normalized}) {
      for (const auto& found : AddedTokenFinder(*added).find(text_.substr(begin_))) {
        if (begin_ + found.range.begin > end_) break;
        begin_after_ = begin_ + found.range.end;
      }
      begin_ = begin_after_;
    }
    end_ = std::max(begin_, end_);
    // White space that a token strips belongs to it.
    const bool strips = rules_.added.strips_left() || rules_.added_normalized.strips_left();
    while (end_ > begin_ && (!is_boundary(end_) || (strips && follows_space(end_)))) --end_;
  }

  // True if a character begins here whose normalized form does not depend on what precedes it.
  [[nodiscard]] bool is_boundary(std::size_t at) const {
    const char32_t character = first_character(text_.substr(at));
    return character != 0 && (rules_.nfc == nullptr || rules_.nfc->begins_segment(character));
  }
  [[nodiscard]] bool follows_space(std::size_t at) const {
    return is_white_space(last_character(text_.substr(0, at)));
  }

  // True if the added tokens of the parts are those of the whole.
  [[nodiscard]] bool keeps_tokens(std::size_t at) const {
    if (!is_boundary(at)) return false;
    const bool strips = rules_.added.strips_right() || rules_.added_normalized.strips_right();
    if (strips && follows_space(at)) return false;
    return !rules_.added.touches(text_, at) && !rules_.added_normalized.touches(text_, at);
  }

  // The position before normalization; empty within a part that normalization changed.
  static std::optional<std::size_t> position_before(std::size_t at,
                                                    const std::vector<Replacement>& changes) {
    ByteRange last{};  // the ends of the last change before the position
    const auto next = std::ranges::upper_bound(
        changes, at, {}, [](const Replacement& change) { return change.after.begin; });
    if (next != changes.begin()) {
      const Replacement& previous = *std::prev(next);
      if (at < previous.after.end && at > previous.after.begin) return std::nullopt;
      if (at == previous.after.begin) return previous.before.begin;
      last = {.begin = previous.before.end, .end = previous.after.end};
    }
    return last.begin + (at - last.end);
  }

  const Rules& rules_;
  std::string_view text_;
  std::size_t begin_ = 0;
  std::size_t begin_after_ = 0;
  std::size_t end_ = 0;
};

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  HuggingFaceTokenizer(std::string model, const std::string& name) : model_(std::move(model)) {
    const DocumentEnd split = split_document_end(model_);
    const TokenizerJson json = parse_tokenizer_json(split.content, name);
    rules_ = std::make_shared<const Rules>(json, name);
    for (const auto& [token, id] : json.model.vocab) add(token, id, split.token);
    for (const AddedToken& token : json.added_tokens) add(token.content, token.id, split.token);
    // The package decodes a normalized token in its normalized form.
    for (const AddedToken& token : added_tokens_of(json, true, name))
      set_text(token.content, token.id);
    if (!split.token.empty() && !end_) {
      base::fail(base::ErrorKind::data,
                 "tokenizer '{}' has no token \"{}\", which is to end documents; correct "
                 "--document-end, or eos_token in the tokenizer_config.json beside it",
                 name, base::printable(split.token));
    }
  }

  [[nodiscard]] TokenizerKind kind() const override { return TokenizerKind::hugging_face; }
  [[nodiscard]] std::int64_t vocab() const override { return vocab_; }
  [[nodiscard]] std::string_view model() const override { return model_; }
  [[nodiscard]] std::optional<std::uint32_t> end_of_document() const override { return end_; }
  [[nodiscard]] std::size_t cut(std::string_view text) const override {
    // PCRE2 and ICU must not see other bytes. check_utf8 reports them when the block is encoded.
    const std::size_t valid = invalid_utf8_at(text).value_or(text.size());
    return CutSearch(*rules_, text.substr(0, valid)).find();
  }
  [[nodiscard]] std::string text_of(std::int64_t token) const override {
    DTRAIN_CHECK(0 <= token && token < vocab_, "token {} of {}", token, vocab_);
    const auto found = texts_.find(static_cast<std::uint32_t>(token));
    return found == texts_.end() ? std::string() : found->second;  // the vocabulary may have gaps
  }
  [[nodiscard]] std::unique_ptr<Encoder> make_encoder() const override {
    return std::make_unique<HuggingFaceEncoder>(rules_);
  }

 private:
  void add(const std::string& token, std::uint32_t id, const std::string& end) {
    set_text(token, id);
    if (!end.empty() && token == end) end_ = id;
    vocab_ = std::max(vocab_, std::int64_t{id} + 1);
  }
  // The package decodes all tokens from the alphabet, also added ones.
  void set_text(const std::string& token, std::uint32_t id) {
    auto bytes = bytes_of_letters(token);
    texts_[id] = bytes ? std::move(*bytes) : token;
  }

  std::string model_;
  std::shared_ptr<const Rules> rules_;
  std::unordered_map<std::uint32_t, std::string> texts_;
  std::int64_t vocab_ = 0;
  std::optional<std::uint32_t> end_;  // of documents
};

}  // namespace

std::shared_ptr<const Tokenizer> open_hugging_face(std::string model, const std::string& name) {
  return std::make_shared<const HuggingFaceTokenizer>(std::move(model), name);
}

}  // namespace dtrain::data
