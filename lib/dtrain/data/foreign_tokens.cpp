#include "dtrain/data/foreign_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace dtrain::data {
namespace {

constexpr std::string_view kGiveOther = "give a text, or the tokens that such models train on";

std::string convert_from(std::string_view encoding, const std::string& path) {
  return fmt::format("convert it to UTF-8: iconv -f {} -t UTF-8 {}", encoding, path);
}

std::string make_tokens(const std::string& path) {
  return fmt::format("make a token file of it: dtrain data prepare {} --output FILE.dtok", path);
}

// dtrain data prepare takes tokens without a header from files of this name alone.
std::string make_tokens_without_header(const std::string& path) {
  const bool has_name = path.ends_with(".bin");
  return fmt::format(
      "make a token file of it{}: dtrain data prepare {} --vocab N --output FILE.dtok, with the "
      "vocabulary of its tokenizer (GPT-2's: 50257)",
      has_name ? "" : ", under a name that ends with .bin", has_name ? path : path + ".bin");
}

// GPT-2's vocabulary, rounded up as trainers round it.
constexpr std::uint16_t kLargestVocab = 50304;

struct Magic {
  std::uint32_t number;
  std::string_view what;
  bool has_tokens;
};
constexpr Magic kMagics[] = {{20240520, "a token file of llm.c (GPT-2 tokens)", true},
                             {20240801, "a token file of llm.c (Llama 3 tokens)", true},
                             {20240522, "an evaluation file of llm.c", false},
                             {20240326, "a model of llm.c", false}};

std::uint16_t unit_at(std::string_view bytes, std::size_t index) {
  std::uint16_t unit = 0;
  std::memcpy(&unit, bytes.data() + index * sizeof(unit), sizeof(unit));
  return unit;
}

bool is_printable(std::uint16_t unit) {
  return unit == '\t' || unit == '\n' || unit == '\r' || (unit >= ' ' && unit != 0x7f);
}

// Text of European languages in 16-bit units: nearly all of them below 0x500, none a control.
bool is_utf16(std::string_view bytes, bool is_big_endian) {
  const std::size_t count = bytes.size() / 2;
  std::size_t usual = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t unit = unit_at(bytes, i);
    if (is_big_endian) unit = static_cast<std::uint16_t>(unit << 8 | unit >> 8);
    if (is_printable(unit) && unit < 0x500) ++usual;
  }
  return count > 0 && usual >= count - count / 50;
}

// Recognises the files of nanoGPT's prepare.py: no header, each token below GPT-2's vocabulary. In
// other bytes a quarter of the units would be above.
bool is_16_bit_tokens(std::string_view bytes) {
  constexpr std::size_t kFewestTokens = 32;
  const std::size_t count = bytes.size() / 2;
  if (bytes.size() % 2 != 0 || count < kFewestTokens) return false;
  bool differ = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (unit_at(bytes, i) >= kLargestVocab) return false;
    differ = differ || unit_at(bytes, i) != unit_at(bytes, 0);
  }
  return differ;
}

}  // namespace

ForeignData recognise_foreign(std::string_view start, const std::string& path) {
  using namespace std::string_view_literals;
  if (start.starts_with("\xff\xfe\0\0"sv) || start.starts_with("\0\0\xfe\xff"sv)) {
    return {"UTF-32 text", convert_from("UTF-32", path)};
  }
  if (start.starts_with("\xff\xfe") || start.starts_with("\xfe\xff")) {
    return {"UTF-16 text", convert_from("UTF-16", path)};
  }
  std::uint32_t number = 0;
  std::memcpy(&number, start.data(), std::min(start.size(), sizeof(number)));
  const auto* magic = std::ranges::find(kMagics, number, &Magic::number);
  if (magic != std::end(kMagics)) {
    return {magic->what, magic->has_tokens ? make_tokens(path) : std::string(kGiveOther)};
  }
  if (start.find('\0') == start.npos) return {};
  if (is_utf16(start, false)) return {"UTF-16 text", convert_from("UTF-16LE", path)};
  if (is_utf16(start, true)) return {"UTF-16 text", convert_from("UTF-16BE", path)};
  if (is_16_bit_tokens(start)) {
    return {"probably 16-bit tokens without a header, as nanoGPT's prepare.py writes them",
            make_tokens_without_header(path)};
  }
  return {};
}

}  // namespace dtrain::data
