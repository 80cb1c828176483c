#include "dtrain/data/tokenizer/hugging_face/byte_alphabet.h"

#include <array>

#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

constexpr std::size_t kAlphabetSize = 256;
constexpr char32_t kFirstSubstitute = 0x100;  // for bytes that are not printable in Latin-1

constexpr bool is_printable_byte(std::size_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, kAlphabetSize> kLetters = [] {
  std::array<char32_t, kAlphabetSize> letters{};
  char32_t substitute = kFirstSubstitute;
  for (std::size_t byte = 0; byte < kAlphabetSize; ++byte) {
    letters[byte] = is_printable_byte(byte) ? static_cast<char32_t>(byte) : substitute++;
  }
  return letters;
}();

// All letters are below U+0144.
constexpr std::array<std::int16_t, 0x144> kBytesOfLetters = [] {
  std::array<std::int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (std::size_t byte = 0; byte < kAlphabetSize; ++byte) {
    bytes[kLetters[byte]] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

std::string letter_of(std::uint8_t byte) {
  const char32_t letter = kLetters[byte];
  if (letter < 0x80) return {static_cast<char>(letter)};
  return {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
}

std::optional<std::string> bytes_of_letters(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const char32_t letter = first_character(token);
    if (letter == 0 || letter >= kBytesOfLetters.size() || kBytesOfLetters[letter] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(kBytesOfLetters[letter]));
    token.remove_prefix(letter < 0x80 ? 1 : 2);
  }
  return bytes;
}

}  // namespace dtrain::data
