#include "dtrain/data/source/json_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/base/text/text.h"

namespace dtrain::data {
namespace {

bool is_space(char c) { return kJsonSpace.find(c) != kJsonSpace.npos; }

/// Scans JSON without recursion, so nesting depth is unlimited.
class Scanner {
 public:
  /// record: the enclosing record, for byte positions in messages.
  Scanner(std::string_view text, std::string_view record) : text_(text), record_(record) {}

  [[nodiscard]] bool is_at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char peek() const { return is_at_end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (is_at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (!is_at_end() && is_space(text_[at_])) ++at_;
  }
  bool take(std::string_view word) {
    if (!rest().starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  /// The next character that is not a space; a newline at the end.
  [[nodiscard]] char next_on_line() const {
    const std::size_t next = text_.find_first_not_of(" \t\r", at_);
    return next == text_.npos ? '\n' : text_[next];
  }
  void need(char c) {
    skip_space();
    if (!take(c)) refuse(fmt::format("'{}' is missing", c));
  }
  [[noreturn]] void refuse(std::string_view reason) const {
    const std::ptrdiff_t before = text_.data() - record_.data();
    throw RecordFault(fmt::format("it is not JSON (byte {}: {})",
                                  before + static_cast<std::ptrdiff_t>(at_) + 1, reason));
  }

  /// Reads a string whose opening quote was consumed, and its closing quote. Empty if unclosed.
  std::optional<std::string_view> closed_string() {
    const std::size_t begin = at_;
    for (; !is_at_end(); ++at_) {
      if (text_[at_] == '"') return text_.substr(begin, at_++ - begin);
      if (text_[at_] == '\\' && ++at_ == text_.size()) break;
    }
    at_ = text_.size();
    return std::nullopt;
  }
  /// As closed_string, but fails if the string is not closed.
  std::string_view raw_string() {
    if (const auto string = closed_string()) return *string;
    refuse("a string is not closed");
  }

  /// Reads a value including its quotes or brackets. Within brackets it distinguishes only brackets
  /// and strings.
  std::string_view raw_value() {
    const std::size_t begin = at_;
    if (take('"')) {
      (void)raw_string();
    } else if (peek() == '{' || peek() == '[') {
      skip_brackets();
    } else {
      while (!is_at_end() && !is_space(text_[at_]) && !ends_value(text_[at_])) ++at_;
      if (at_ == begin) refuse("a value is missing");
    }
    return text_.substr(begin, at_ - begin);
  }

 private:
  static bool ends_value(char c) { return c == ',' || c == '}' || c == ']'; }

  void skip_brackets() {
    std::int64_t depth = 0;
    while (!is_at_end()) {
      const char c = text_[at_++];
      if (c == '"') (void)raw_string();
      if (c == '{' || c == '[') ++depth;
      if ((c == '}' || c == ']') && --depth == 0) return;
    }
    refuse("a bracket is not closed");
  }

  std::string_view text_;
  std::string_view record_;
  std::size_t at_ = 0;
};

std::string_view kind_of(std::string_view value) {
  if (value == "null") return "null";
  if (value == "true" || value == "false") return "a boolean";
  if (value[0] == '"') return "a string";
  if (value[0] == '{') return "an object";
  if (value[0] == '[') return "an array";
  const bool is_number = value[0] == '-' || (value[0] >= '0' && value[0] <= '9');
  return is_number ? "a number" : "other text";
}

/// Calls visit(raw name, raw value) for each member.
template <typename Visit>
void for_each_member(std::string_view object, std::string_view record, Visit visit) {
  Scanner scanner(object, record);
  scanner.skip_space();
  if (!scanner.take('{')) {
    throw RecordFault(fmt::format("found {} instead of an object", kind_of(scanner.raw_value())));
  }
  scanner.skip_space();
  if (!scanner.take('}')) {
    do {
      scanner.need('"');
      const std::string_view name = scanner.raw_string();
      scanner.need(':');
      scanner.skip_space();
      visit(name, scanner.raw_value());
      scanner.skip_space();
    } while (scanner.take(','));
    scanner.need('}');
  }
  scanner.skip_space();
  if (!scanner.is_at_end()) scanner.refuse("data after the end of the object");
}

bool is_name(std::string_view raw, std::string_view name) {
  if (raw.find('\\') == raw.npos) return raw == name;
  try {
    return unescaped(raw) == name;
  } catch (const RecordFault&) {
    return false;  // another field's name, which need not be valid
  }
}

std::optional<std::string_view> member(std::string_view object, std::string_view record,
                                       std::string_view name) {
  std::optional<std::string_view> found;
  for_each_member(object, record, [&](std::string_view raw, std::string_view value) {
    if (is_name(raw, name)) found = value;
  });
  return found;
}

[[noreturn]] void refuse_field(std::string_view path, std::string_view found,
                               std::string_view needed) {
  throw RecordFault(fmt::format("its field \"{}\" is {}, not {}; name another with --field", path,
                                found, needed));
}

std::optional<std::string_view> value_at(std::string_view record, std::string_view path) {
  std::string_view object = record;
  for (std::string_view rest = path;;) {
    if (const auto value = member(object, record, rest)) return value;
    const std::size_t dot = rest.find('.');
    if (dot == rest.npos) return std::nullopt;
    const auto outer = member(object, record, rest.substr(0, dot));
    if (!outer || *outer == "null") return outer;
    if (outer->front() != '{') refuse_field(rest.substr(0, dot), kind_of(*outer), "an object");
    object = *outer;
    rest.remove_prefix(dot + 1);
  }
}

std::string text_of(std::string_view string) {
  return unescaped(string.substr(1, string.size() - 2));
}

// Joins the strings of a list, such as lines or paragraphs, with newlines.
std::string joined_strings(std::string_view array, std::string_view record, std::string_view path) {
  Scanner scanner(array, record);
  std::vector<std::string> lines;
  scanner.need('[');
  scanner.skip_space();
  if (scanner.take(']')) return {};
  do {
    scanner.skip_space();
    const std::string_view value = scanner.raw_value();
    if (value[0] == '"') {
      lines.push_back(text_of(value));
    } else if (value != "null") {
      refuse_field(path, fmt::format("a list with {}", kind_of(value)), "strings");
    }
    scanner.skip_space();
  } while (scanner.take(','));
  scanner.need(']');
  return fmt::format("{}", fmt::join(lines, "\n"));
}

// Keeps the first names, shortened: untrusted objects may have any number of names of any length.
class NameList {
 public:
  void add(std::string_view name) {
    constexpr std::size_t kMostNames = 10;
    constexpr std::size_t kLongestName = 40;
    if (names_.size() > kMostNames) return;
    const bool is_long = name.size() > kLongestName;
    names_.push_back(names_.size() == kMostNames ? "..."
                     : is_long                   ? std::string(name.substr(0, kLongestName)) + "..."
                                                 : std::string(name));
  }
  [[nodiscard]] std::string text() const {
    return names_.empty() ? "none" : base::printable(fmt::format("{}", fmt::join(names_, ", ")));
  }

 private:
  std::vector<std::string> names_;
};

bool begins_value(std::string_view text) {
  constexpr std::string_view kFirst = "\"[{-0123456789";
  for (const std::string_view word : {"null", "true", "false"}) {
    if (text.starts_with(word)) return true;
  }
  return text.empty() || kFirst.find(text[0]) != kFirst.npos;
}

// Called after an array's value: distinguishes JSON from text that begins with brackets.
bool continues_array(Scanner& scanner) {
  scanner.skip_space();
  if (scanner.take(']')) {
    const char next = scanner.next_on_line();
    return next == '\n' || next == ',' || next == ']';
  }
  if (!scanner.take(',')) return false;
  scanner.skip_space();
  return begins_value(scanner.rest());
}

// Called after the opening bracket of an array whose first value is neither array nor object.
bool begins_array(Scanner& scanner) {
  if (scanner.take("null")) return continues_array(scanner);
  if (!scanner.take('"')) return false;
  const std::string_view rest = scanner.rest();
  if (scanner.closed_string()) return continues_array(scanner);
  return rest.find('\n') == rest.npos;  // the closing quote may follow later
}

// Called after the opening brace.
bool begins_object(Scanner& scanner, bool is_in_array) {
  scanner.skip_space();
  if (scanner.take('}')) {
    return is_in_array ? continues_array(scanner) : scanner.next_on_line() == '\n';
  }
  if (!scanner.take('"') || !scanner.closed_string()) return false;
  scanner.skip_space();
  return scanner.take(':');
}

}  // namespace

FieldText field_text(std::string_view record, std::string_view path) {
  const auto value = value_at(record, path);
  if (!value) return {};
  if (*value == "null") return {.text = std::nullopt, .is_null = true};
  if (value->front() == '[') return {.text = joined_strings(*value, record, path)};
  if (value->front() != '"') refuse_field(path, kind_of(*value), "a string");
  return {.text = text_of(*value)};
}

std::string text_fields(std::string_view record) {
  NameList names;
  const auto visit_inner = [&](std::string_view outer, std::string_view object) {
    for_each_member(object, object, [&](std::string_view name, std::string_view value) {
      if (value[0] == '"') names.add(fmt::format("{}.{}", outer, name));
    });
  };
  try {
    for_each_member(record, record, [&](std::string_view name, std::string_view value) {
      if (value[0] == '"') names.add(name);
      if (value[0] == '{') visit_inner(name, value);
    });
  } catch (const RecordFault&) {
    return names.text();  // the fields before the truncation
  }
  return names.text();
}

bool begins_as_json(std::string_view start) {
  start = without_byte_order_mark(start);
  Scanner scanner(start, start);
  scanner.skip_space();
  const bool is_array = scanner.peek() == '[';
  while (scanner.take('[')) scanner.skip_space();
  if (scanner.take('{')) return begins_object(scanner, is_array);
  return is_array && begins_array(scanner);
}

}  // namespace dtrain::data
