#include "dtrain/config/input/object_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/storage_error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kMaxDepth = 16;
constexpr std::string_view kJsonIsNeeded =
    "JSON is needed: {\"key\": value, ...}, in UTF-8, // comments allowed";

std::string_view after_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// nlohmann's message without its exception id.
std::string parser_message(const std::exception& error) {
  const std::string message = error.what();
  const std::size_t end_of_id = message.find("] ");
  return end_of_id == std::string::npos ? message : message.substr(end_of_id + 2);
}

// Advice on the JSON to write instead. place: offset of the first invalid byte.
std::string_view remedy(std::string_view text, std::size_t place, std::string_view message) {
  const std::string_view rest = text.substr(std::min(place, text.size()));
  const auto begins = [&](std::string_view word) { return rest.starts_with(word); };
  if (begins("}") || begins("]")) return "is there an extra comma before it?";
  if (begins("'")) return "write strings in double quotes";
  if (begins("#")) return "comments begin with //";
  if (begins("True") || begins("False")) return "write true or false";
  if (begins("None")) return "leave the key out";
  if (begins("NaN") || begins("nan") || begins("I") || begins("i")) return "numbers must be finite";
  if (message.find("unexpected end of input") != message.npos) return "is the file complete?";
  if (message.find("object key") != message.npos) return "write keys in double quotes";
  return {};
}

[[noreturn]] void refuse_text(std::string_view text, const std::string& origin, std::size_t place,
                              const std::exception& error) {
  const std::string_view content = after_byte_order_mark(text);
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  if (begin == content.npos) {
    fail(ErrorKind::usage, "{}: it is empty, but it must contain an object {{...}}", origin);
  }
  if (origin.ends_with(".txt")) {
    fail(ErrorKind::usage, "{}: not valid JSON; to train on this text give --data {}", origin,
         origin);
  }
  if (content[begin] != '{' && content[begin] != '/') {
    const std::string_view line =
        content.substr(begin, content.find_first_of("\r\n", begin) - begin);
    fail(ErrorKind::usage, "{}: not valid JSON: it begins with {}; {}", origin,
         base::json_text(base::printable(line, 40)), kJsonIsNeeded);
  }
  const std::string message = parser_message(error);
  const std::string_view advice = remedy(text, place, message);
  fail(ErrorKind::usage, "{}: not valid JSON: {}{}{}", origin, base::printable(message),
       advice.empty() ? "" : "; ", advice);
}

// Validates a text before it is parsed: rejects what Json::parse silently accepts or changes, and
// reports errors with the key.
class Checker : public nlohmann::json_sax<Json> {
 public:
  Checker(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }

  // The parser rounds numbers too small for a float64 to 0.
  bool number_float(number_float_t value, const string_t& digits) override {
    const std::string_view mantissa =
        std::string_view(digits).substr(0, digits.find_first_of("eE"));
    if (value == 0 && mantissa.find_first_of("123456789") != mantissa.npos) refuse_number(digits);
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    objects_.emplace_back();
    return go_deeper();
  }
  bool key(string_t& name) override {
    Object& object = objects_.back();
    const bool is_repeated = std::ranges::find(object.keys, name) != object.keys.end();
    object.keys.push_back(name);
    if (is_repeated) fail(ErrorKind::usage, "{}: the key \"{}\" appears twice", origin_, path());
    return true;
  }
  bool end_object() override {
    objects_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*size*/) override { return go_deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) refuse_number(last_token);
    refuse_text(text_, origin_, position == 0 ? 0 : position - 1, error);
  }

 private:
  struct Object {
    std::vector<std::string> keys;  // so far
  };

  // The dotted key of the current value.
  [[nodiscard]] std::string path() const {
    std::string path;
    for (const Object& object : objects_) {
      if (object.keys.empty()) continue;
      path += fmt::format("{}{}", path.empty() ? "" : ".", object.keys.back());
    }
    return base::printable(path);
  }
  [[noreturn]] void refuse_number(std::string_view digits) const {
    fail(ErrorKind::usage, "{}: {}: found {}, but a number other than 0 must be 5e-324 to 1.8e308",
         origin_, path(), base::printable(digits, 40));
  }
  bool go_deeper() {
    if (++depth_ > kMaxDepth) fail(ErrorKind::usage, "{}: nested too deeply", origin_);
    return true;
  }

  std::string_view text_;
  const std::string& origin_;
  std::vector<Object> objects_;  // open ones, outermost first
  std::size_t depth_ = 0;
};

}  // namespace

std::string read_text(const std::string& path, std::string_view named_by) {
  const auto refuse = [&](std::string_view why, int reason = 0) {
    base::fail_on_storage(
        ErrorKind::usage, reason,
        fmt::format("cannot read the configuration file {} ({}): {}", path, named_by, why));
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) refuse("it is a folder");
  // Every rank reads the file: only the first would get the contents of a pipe, and opening a FIFO
  // without a writer would block forever.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    refuse(
        "it is not a regular file; write its contents to one (every rank reads the configuration, "
        "and a pipe such as <(...) can be read only once)");
  }
  std::string text;
  const int result = base::retry_transient(path, [&] {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) return -1;
    text.assign(kMaxFileBytes + 1, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(file.gcount()));
    return file.bad() ? -1 : 0;
  });
  if (result != 0) refuse(std::strerror(errno), errno);
  if (text.size() > kMaxFileBytes) refuse("it is larger than 1 MiB");
  return text;
}

Json parse_object(std::string_view text, const std::string& origin) {
  // The parser would treat a NUL as the end of the text.
  if (text.find('\0') != text.npos) {
    fail(ErrorKind::usage, "{}: it is UTF-16 or binary, since it contains zero bytes; {}", origin,
         kJsonIsNeeded);
  }
  const bool is_strict = true;
  const bool ignore_comments = true;
  Checker checker(text, origin);
  (void)Json::sax_parse(text, &checker, Json::input_format_t::json, is_strict, ignore_comments);
  const bool allow_exceptions = true;
  Json value = Json::parse(text, nullptr, allow_exceptions, ignore_comments);
  if (!value.is_object()) {
    fail(ErrorKind::usage, "{}: found {}, but it must be an object {{...}}", origin,
         value.type_name());
  }
  return value;
}

}  // namespace dtrain::config
