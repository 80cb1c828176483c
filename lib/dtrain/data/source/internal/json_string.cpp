#include "dtrain/data/source/internal/json_string.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

void append_utf8(std::uint32_t code, std::string& text) {
  const auto add = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
  const auto add_six_bits = [&](unsigned shift) { add(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add_six_bits(6);
  } else {
    add(0xF0 | code >> 18);
    add_six_bits(12);
    add_six_bits(6);
  }
  add_six_bits(0);
}

bool is_high_surrogate(std::uint32_t code) { return code >= 0xD800 && code < 0xDC00; }
bool is_low_surrogate(std::uint32_t code) { return code >= 0xDC00 && code < 0xE000; }

/// Decodes the bytes between a string's quotes.
class Unescaper {
 public:
  explicit Unescaper(std::string_view raw) : raw_(raw) {}

  std::string text() {
    if (invalid_utf8_at(raw_)) refuse("is not UTF-8");
    std::string text;
    while (at_ < raw_.size()) {
      const char c = raw_[at_++];
      if (static_cast<unsigned char>(c) < ' ') refuse("holds an unescaped control character");
      if (c == '\\') {
        append_escape(text);
      } else {
        text += c;
      }
    }
    return text;
  }

 private:
  [[noreturn]] static void refuse(std::string_view reason) {
    throw RecordFault(fmt::format("a string in it {}", reason));
  }

  void append_escape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = raw_[at_++];  // a string does not end with a backslash
    if (letter == 'u') return append_utf8(escaped_character(), text);
    const std::size_t which = kLetters.find(letter);
    if (which == kLetters.npos) refuse("holds an unknown escape");
    text += kMeanings[which];
  }

  // Reads what follows "\u". Half of a surrogate pair is not a character.
  std::uint32_t escaped_character() {
    constexpr std::uint32_t kReplacement = 0xFFFD;
    const std::uint32_t first = four_digits();
    if (!is_high_surrogate(first)) return is_low_surrogate(first) ? kReplacement : first;
    if (!raw_.substr(at_).starts_with("\\u")) return kReplacement;
    const std::size_t before = at_;
    at_ += 2;
    const std::uint32_t second = four_digits();
    if (is_low_surrogate(second)) return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
    at_ = before;
    return kReplacement;
  }

  std::uint32_t four_digits() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
      const std::size_t digit = at_ < raw_.size() ? kDigits.find(raw_[at_++]) : kDigits.npos;
      if (digit == kDigits.npos) refuse("holds an unknown escape");
      value = value << 4 | static_cast<std::uint32_t>(digit % 16);
    }
    return value;
  }

  std::string_view raw_;
  std::size_t at_ = 0;
};

}  // namespace

std::string unescaped(std::string_view raw) { return Unescaper(raw).text(); }

}  // namespace dtrain::data
