#include "dtrain/data/tokenizer/hugging_face/added_tokens.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/tokenizer/hugging_face/pattern_syntax.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_ranges.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

// The characters of words in the crate regex: \w of Unicode Technical Standard 18.
std::unique_ptr<Pattern> compile_word() {
  std::string members = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";
  for (const CategoryRange& range : later_characters()) {
    constexpr std::string_view kCategories[] = {"Nd", "Nl", "Pc"};
    const char group = range.category.front();
    if (group != 'L' && group != 'M' && std::ranges::count(kCategories, range.category) == 0)
      continue;
    members += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<std::uint32_t>(range.first),
                           static_cast<std::uint32_t>(range.last));
  }
  std::string error;
  auto pattern = unicode_library().compile("^[" + members + "]", error);
  DTRAIN_CHECK(pattern != nullptr, "{}", error);
  return pattern;
}

// Where the last character of a text begins.
std::size_t begin_of_last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

std::size_t without_spaces_at_end(std::string_view text) {
  while (!text.empty() && is_white_space(last_character(text))) {
    text = text.substr(0, begin_of_last_character(text));
  }
  return text.size();
}

std::size_t spaces_at_begin(std::string_view text) {
  const std::size_t before = text.size();
  while (!text.empty() && is_white_space(first_character(text))) {
    std::size_t length = 1;
    while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) {
      ++length;
    }
    text.remove_prefix(length);
  }
  return before - text.size();
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  token_at_.push_back(kNone);
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    std::uint32_t node = 0;
    for (const char byte : token.content) {
      const auto next = static_cast<std::uint32_t>(token_at_.size());
      const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<unsigned char>(byte);
      const auto [child, is_new] = children_.emplace(key, next);
      if (is_new) token_at_.push_back(kNone);
      node = child->second;
    }
    token_at_[node] = static_cast<std::uint32_t>(i);
    begins_token_[static_cast<unsigned char>(token.content.front())] = true;
    longest_ = std::max(longest_, token.content.size());
    strips_left_ |= token.strips_left;
    strips_right_ |= token.strips_right;
    if (token.is_single_word && word_ == nullptr) word_ = compile_word();
  }
}

std::uint32_t AddedTokens::child(std::uint32_t node, char byte) const {
  const auto found = children_.find(std::uint64_t{node} << 8 | static_cast<unsigned char>(byte));
  return found == children_.end() ? kNone : found->second;
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  if (!begins_token_[static_cast<unsigned char>(text[at])]) return nullptr;
  std::uint32_t found = kNone;
  for (std::uint32_t node = 0; at < text.size(); ++at) {
    node = child(node, text[at]);
    if (node == kNone) break;
    if (token_at_[node] != kNone) found = token_at_[node];
  }
  return found == kNone ? nullptr : &tokens_[found];
}

bool AddedTokens::touches(std::string_view text, std::size_t at) const {
  for (std::size_t begin = at - std::min(at, longest_); begin <= at && begin < text.size();
       ++begin) {
    std::uint32_t node = 0;
    for (std::size_t end = begin; end < text.size() && node != kNone;) {
      node = child(node, text[end++]);
      if (node != kNone && token_at_[node] != kNone && end >= at) return true;
    }
  }
  return false;
}

AddedTokenFinder::AddedTokenFinder(const AddedTokens& tokens)
    : tokens_(tokens), word_(tokens.word_ == nullptr ? nullptr : tokens.word_->make_scanner()) {}

bool AddedTokenFinder::is_within_word(std::string_view text, ByteRange range) {
  const auto begins_with_word = [this](std::string_view part) {
    ByteRange ignored;
    return word_->find(part, 0, false, ignored) == PatternScanner::Outcome::match;
  };
  const std::string_view before = text.substr(0, range.begin);
  const std::string_view after = text.substr(range.end);
  return (!before.empty() && begins_with_word(before.substr(begin_of_last_character(before)))) ||
         (!after.empty() && begins_with_word(after));
}

std::vector<AddedTokenFinder::Found> AddedTokenFinder::find(std::string_view text) {
  std::vector<Found> found;
  std::size_t taken = 0;       // the end of the last token found, with its white space
  std::size_t spaces_end = 0;  // the end of the white space that was last stripped on the right
  for (std::size_t at = 0; at < text.size() && !tokens_.is_empty();) {
    const AddedToken* const token = tokens_.longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    ByteRange range{.begin = at, .end = at + token->content.size()};
    at = range.end;
    if (token->is_single_word && is_within_word(text, range)) continue;
    // White space is read once, also if many tokens lie within it.
    if (token->strips_left) {
      const std::size_t end = std::max(range.begin, taken);
      range.begin = taken + without_spaces_at_end(text.substr(taken, end - taken));
    }
    if (token->strips_right) {
      if (range.end >= spaces_end) {
        spaces_end = range.end + spaces_at_begin(text.substr(range.end));
      }
      range.end = spaces_end;
    }
    taken = range.end;
    found.push_back({.range = range, .id = token->id});
  }
  return found;
}

}  // namespace dtrain::data
