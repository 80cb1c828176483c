#include "dtrain/data/tokenizer/hugging_face/pattern_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "dtrain/base/text/text.h"
#include "dtrain/data/tokenizer/hugging_face/unicode_ranges.h"

namespace dtrain::data {
namespace {

// Categories whose later additions complete PCRE2's. Mn, Mc and C have changed otherwise.
constexpr std::string_view kCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd",
    "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
constexpr std::string_view kCased[] = {"L", "Lu", "Ll", "Lt"};
constexpr std::string_view kSpace = "\\p{White_Space}";  // PCRE2's \s has U+180E as well

bool is_digit(char c) { return '0' <= c && c <= '9'; }
bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); }
bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }
bool is_punctuation(char c) { return is_ascii(c) && c >= ' ' && !is_digit(c) && !is_letter(c); }

[[noreturn]] void refuse(std::string_view construct) {
  throw UnsupportedPattern(fmt::format("'{}', which is not supported", base::printable(construct)));
}

/// A set of characters, as the inside of a character class.
struct Set {
  std::string members;
  bool is_negated = false;
};

// PCRE2's category and the characters that later versions of Unicode add to it.
std::string category_members(std::string_view category) {
  std::string members = fmt::format("\\p{{{}}}", category);
  for (const CategoryRange& range : later_characters()) {
    if (!range.category.starts_with(category)) continue;
    members += fmt::format("\\x{{{:X}}}", static_cast<std::uint32_t>(range.first));
    if (range.last > range.first) {
      members += fmt::format("-\\x{{{:X}}}", static_cast<std::uint32_t>(range.last));
    }
  }
  return members;
}

class PatternConverter {
 public:
  explicit PatternConverter(std::string_view pattern) : rest_(pattern) {}

  std::string convert() {
    while (!rest_.empty()) convert_next();
    return result_;
  }

 private:
  [[nodiscard]] char peek(std::size_t at = 0) const { return at < rest_.size() ? rest_[at] : '\0'; }
  std::string_view take(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    if (taken.size() < count) refuse("an incomplete construct");
    rest_.remove_prefix(count);
    return taken;
  }
  [[nodiscard]] bool ignores_case() const { return groups_.back(); }

  void convert_next() {
    switch (peek()) {
      case '\\':
        return convert_escape();
      case '[':
        return convert_class();
      case '(':
        return open_group();
      case ')':
        if (groups_.size() == 1) refuse(")");
        groups_.pop_back();
        return copy_atom();
      case '|':
        result_ += take(1);
        last_ = '\0';
        return;
      case '*':
      case '+':
      case '?':
      case '{':
        return convert_quantifier();
      case '^':
      case '$':
        refuse(take(1));
      default:
        return copy_literal();
    }
  }

  void copy_atom() {
    result_ += take(1);
    last_ = '\0';
  }

  // Without regard to case, Oniguruma matches some pairs of letters with one character, such as
  // "ss" with U+00DF.
  void copy_literal() {
    constexpr std::string_view kPairs[] = {"ss", "ff", "fi", "fl", "st"};
    const char c = peek();
    if (c == '\0') refuse("a NUL");
    if (ignores_case()) {
      if (!is_ascii(c)) refuse("(?i:...) with a character that is not ASCII");
      const std::string pair = {last_, static_cast<char>(c | 0x20)};
      if (std::ranges::count(kPairs, pair) > 0) refuse(fmt::format("(?i:...) with {}", pair));
    }
    result_ += take(1);
    last_ = is_letter(c) ? static_cast<char>(c | 0x20) : '\0';
  }

  void open_group() {
    constexpr std::string_view kSame[] = {"(?:", "(?=", "(?!", "(?>"};
    constexpr std::string_view kIgnoreCase = "(?i:";
    bool ignores = ignores_case();
    if (rest_.starts_with(kIgnoreCase)) {
      ignores = true;
      result_ += take(kIgnoreCase.size());
    } else if (!rest_.starts_with("(?")) {
      take(1);
      result_ += "(?:";  // a capture, which nothing refers to
    } else if (std::ranges::count(kSame, rest_.substr(0, 3)) > 0) {
      result_ += take(3);
    } else {
      refuse(rest_.substr(0, 4));
    }
    groups_.push_back(ignores);
    last_ = '\0';
  }

  void convert_quantifier() {
    if (result_.empty()) refuse(rest_.substr(0, 1));
    const bool is_interval = peek() == '{';
    result_ += is_interval ? interval() : take(1);
    if (!is_interval && (peek() == '?' || peek() == '+')) result_ += take(1);
    constexpr std::string_view kQuantifiers = "*+?{";
    // In Oniguruma's syntax, a+? is lazy, but a{2}? and a{2}+ repeat a{2}.
    if (!rest_.empty() && kQuantifiers.find(peek()) != kQuantifiers.npos) {
      refuse("a quantifier after a quantifier");
    }
    last_ = '\0';
  }

  std::string_view interval() {
    constexpr std::size_t kMostDigits = 4;
    const auto digits = [this](std::size_t at) {
      std::size_t count = 0;
      while (is_digit(peek(at + count))) ++count;
      return count;
    };
    const std::size_t first = digits(1);
    std::size_t at = 1 + first;
    std::size_t second = 0;
    if (peek(at) == ',') {
      second = digits(at + 1);
      at += 1 + second;
    }
    if (first == 0 || std::max(first, second) > kMostDigits || peek(at) != '}') {
      refuse(rest_.substr(0, at + 1));
    }
    return take(at + 1);
  }

  void convert_escape() {
    if (const auto set = take_set()) {
      result_ += fmt::format("[{}{}]", set->is_negated ? "^" : "", set->members);
    } else {
      result_ += take_character();
    }
    last_ = '\0';
  }

  // An escape that stands for a set of characters; takes nothing if it is of another kind.
  std::optional<Set> take_set() {
    switch (peek(1)) {
      case 's':
      case 'S':
        return Set{.members = std::string(kSpace), .is_negated = take(2)[1] == 'S'};
      case 'd':
      case 'D':
        return Set{.members = category_members("Nd"), .is_negated = take(2)[1] == 'D'};
      case 'p':
      case 'P':
        return take_property();
      default:
        return std::nullopt;
    }
  }

  Set take_property() {
    const std::size_t end = rest_.find('}');
    if (peek(2) != '{' || end == rest_.npos) refuse(rest_.substr(0, 3));
    const std::string_view whole = take(end + 1);
    bool is_negated = whole[1] == 'P';
    std::string_view name = whole.substr(3, whole.size() - 4);
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    const bool depends_on_case = ignores_case() && std::ranges::count(kCased, name) > 0;
    if (std::ranges::count(kCategories, name) == 0 || depends_on_case) refuse(whole);
    return {.members = category_members(name), .is_negated = is_negated};
  }

  // An escape that stands for one character.
  std::string take_character() {
    constexpr std::string_view kSame = "rntf";
    constexpr std::size_t kShort = 2;  // hexadecimal digits of \xHH
    constexpr std::size_t kLong = 4;   // of \uHHHH
    const char kind = peek(1);
    if (is_punctuation(kind) || (kind != '\0' && kSame.find(kind) != kSame.npos)) {
      return std::string(take(2));
    }
    if ((kind != 'x' && kind != 'u') || ignores_case()) refuse(rest_.substr(0, 2));
    const std::string_view whole = take(2 + (kind == 'x' ? kShort : kLong));
    const std::string_view digits = whole.substr(2);
    const bool is_hexadecimal = std::ranges::all_of(
        digits, [](char c) { return is_digit(c) || ('a' <= (c | 0x20) && (c | 0x20) <= 'f'); });
    // \x80 and above are bytes in Oniguruma's syntax.
    if (!is_hexadecimal || (kind == 'x' && digits[0] >= '8')) refuse(whole);
    return fmt::format("\\x{{{}}}", digits);
  }

  void convert_class() {
    result_ += take(1);
    if (peek() == '^') result_ += take(1);
    if (peek() == ']') refuse("[]");
    bool follows_set = false;  // a hyphen after a set has several readings
    while (peek() != ']') {
      if (rest_.empty()) refuse("an unclosed [");
      follows_set = convert_member(follows_set);
    }
    result_ += take(1);
    last_ = '\0';
  }

  // Returns whether the member is a set.
  bool convert_member(bool follows_set) {
    const char c = peek();
    if (c == '[' || rest_.starts_with("&&")) refuse(rest_.substr(0, 2));
    constexpr std::string_view kSets = "sSdDpP";
    const bool precedes_set = peek(1) == '\\' && kSets.find(peek(2)) != kSets.npos;
    if (c == '-' && peek(1) != ']' && (follows_set || precedes_set)) refuse("a range of sets");
    if (c == '\\') {
      const auto set = take_set();
      if (!set) {
        result_ += take_character();
        return false;
      }
      if (set->is_negated && set->members != kSpace) refuse("a negated set within [...]");
      result_ += set->is_negated ? "\\P{White_Space}" : set->members;
      return true;
    }
    if (c == '\0') refuse("a NUL");
    if (ignores_case() && !is_ascii(c)) refuse("(?i:...) with a character that is not ASCII");
    result_ += take(1);
    return false;
  }

  std::string_view rest_;
  std::string result_;
  std::vector<bool> groups_ = {false};  // whether the open groups ignore case, outermost first
  char last_ = '\0';                    // the previous literal letter, in lower case
};

}  // namespace

std::string to_pcre2(std::string_view oniguruma) { return PatternConverter(oniguruma).convert(); }

std::string to_pcre2_literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (is_punctuation(c)) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

}  // namespace dtrain::data
