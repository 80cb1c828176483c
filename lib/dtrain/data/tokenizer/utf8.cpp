#include "dtrain/data/tokenizer/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace dtrain::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Returns the length of the well-formed character at the beginning of `text`; 0 if there is none.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  if (!std::all_of(text.begin() + 1, text.begin() + static_cast<std::ptrdiff_t>(length),
                   is_continuation)) {
    return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool is_surrogate = first == 0xED && second > 0x9F;
  const bool is_beyond_unicode = first == 0xF4 && second > 0x8F;
  return is_overlong || is_surrogate || is_beyond_unicode ? 0 : length;
}

/// Returns the length of the longest beginning of a well-formed character at the beginning of
/// `text`; at least 1.
std::size_t beginning_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t whole = first < 0xC2 || first > 0xF4 ? 1
                            : first < 0xE0               ? 2
                            : first < 0xF0               ? 3
                                                         : 4;
  std::size_t length = 1;
  for (; length < std::min(whole, text.size()); ++length) {
    const auto byte = static_cast<unsigned char>(text[length]);
    // The second byte also excludes overlong forms, surrogates and what is beyond Unicode.
    const bool is_second = length == 1;
    const unsigned lowest = is_second && first == 0xE0   ? 0xA0
                            : is_second && first == 0xF0 ? 0x90
                                                         : 0x80;
    const unsigned highest = is_second && first == 0xED   ? 0x9F
                             : is_second && first == 0xF4 ? 0x8F
                                                          : 0xBF;
    if (byte < lowest || byte > highest) break;
  }
  return length;
}

/// Returns where the last character begins, complete or not: at most 4 bytes before the end.
std::size_t begin_of_last(std::string_view text) {
  constexpr std::size_t kLongest = 4;
  if (text.empty()) return 0;
  std::size_t begin = text.size() - 1;
  const std::size_t earliest = text.size() - std::min(text.size(), kLongest);
  while (begin > earliest && is_continuation(text[begin])) --begin;
  return begin;
}

}  // namespace

std::optional<std::size_t> invalid_utf8_at(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight = kHighBits;
    if (at + sizeof(eight) <= text.size()) std::memcpy(&eight, text.data() + at, sizeof(eight));
    if ((eight & kHighBits) == 0) {
      at += sizeof(eight);
      continue;
    }
    const std::size_t length = character_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

std::size_t whole_characters(std::string_view text) {
  const std::size_t begin = begin_of_last(text);
  const std::string_view last = text.substr(begin);
  if (last.empty() || is_continuation(last[0])) return text.size();
  return character_length(last) == last.size() ? text.size() : begin;
}

char32_t first_character(std::string_view text) {
  const std::size_t length = text.empty() ? 0 : character_length(text);
  if (length == 0) return 0;
  constexpr unsigned kFirstBits[] = {0x7F, 0x1F, 0x0F, 0x07};
  char32_t character = static_cast<unsigned char>(text[0]) & kFirstBits[length - 1];
  for (std::size_t i = 1; i < length; ++i) {
    character = character << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
  }
  return character;
}

char32_t last_character(std::string_view text) {
  const std::string_view last = text.substr(begin_of_last(text));
  return !last.empty() && character_length(last) == last.size() ? first_character(last) : 0;
}

std::string Utf8Repair::add(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    std::size_t length = character_length(rest);
    if (length > 0) {
      text += rest.substr(0, length);
    } else {
      length = beginning_length(rest);
      const auto first = static_cast<unsigned char>(rest[0]);
      const bool may_continue = length == rest.size() && first >= 0xC2 && first <= 0xF4;
      if (may_continue) break;
      text += kReplacement;
    }
    rest.remove_prefix(length);
  }
  pending_ = std::string(rest);
  return text;
}

std::string Utf8Repair::finish() {
  const bool is_within = !pending_.empty();
  pending_.clear();
  return std::string(is_within ? kReplacement : "");
}

}  // namespace dtrain::data
