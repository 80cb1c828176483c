#include "dtrain/data/tokenizer/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace dtrain::data {
namespace {

bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

/// Bytes of the well-formed character that `text` begins with; 0: there is none.
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
  std::size_t end = text.size();
  while (end > 0 && is_continuation(text[end - 1])) --end;
  if (end == 0) return text.size();
  const bool is_whole = character_length(text.substr(end - 1)) == text.size() - (end - 1);
  return is_whole ? text.size() : end - 1;
}

}  // namespace dtrain::data
