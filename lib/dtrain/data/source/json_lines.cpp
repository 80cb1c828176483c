#include "dtrain/data/source/json_lines.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/printable.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using Json = nlohmann::json;

struct Place {
  const Block& block;
  std::int64_t line;
};

template <typename... Args>
[[noreturn]] void refuse(const Place& place, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::data, "data file '{}', line {}: {}", place.block.file, place.line,
             fmt::format(format, std::forward<Args>(args)...));
}

// The parser's own words begin with "[json.exception.parse_error.101] parse error at line 1, ".
std::string reason_of(const Json::exception& error) {
  const std::string message = error.what();
  const auto place = message.find("column");
  return base::printable(place == message.npos ? message : message.substr(place));
}

// JSON lines are often taken for a JSON array.
std::string_view advice_for(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first != line.npos && line[first] == '['
             ? "; it seems to be a JSON array: jq -c '.[]' FILE writes its objects as lines"
             : "";
}

Json parse(const Place& place, std::string_view line) {
  try {
    return Json::parse(line);
  } catch (const Json::exception& error) {
    refuse(place, "it is not JSON ({}); every line must be one object{}", reason_of(error),
           advice_for(line));
  }
}

// The first ones: a stranger's object may have any number of them, of any length.
std::string fields_with_texts(const Json& object) {
  constexpr std::size_t kMostNames = 10;
  constexpr std::size_t kLongestName = 40;
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_string()) continue;
    if (names.size() == kMostNames) {
      names.emplace_back("...");
      break;
    }
    names.push_back(name.size() > kLongestName ? name.substr(0, kLongestName) + "..." : name);
  }
  return names.empty() ? "none" : base::printable(fmt::format("{}", fmt::join(names, ", ")));
}

std::string text_in(const Place& place, std::string_view line, const std::string& field) {
  Json object = parse(place, line);
  if (!object.is_object()) {
    refuse(place, "found {} where an object is needed{}", object.type_name(), advice_for(line));
  }
  const auto found = object.find(field);
  if (found == object.end()) {
    refuse(place, "it has no field \"{}\"; its texts are in: {}; name one with --field", field,
           fields_with_texts(object));
  }
  if (!found->is_string()) {
    refuse(place, "its field \"{}\" is {}, not a string; name another with --field", field,
           found->type_name());
  }
  return std::move(found->get_ref<std::string&>());
}

}  // namespace

std::vector<Part> documents_of_lines(const Block& block, const LineRule& rule,
                                     std::string& storage) {
  std::vector<std::size_t> ends;
  std::int64_t number = block.first_line;
  for (std::string_view rest = block.bytes; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    const std::string text = text_in({block, number}, line, rule.field);
    if (text.empty()) continue;
    storage += text;
    if (rule.adds_newline && text.back() != '\n') storage += '\n';
    ends.push_back(storage.size());
  }
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    parts.push_back({.text = std::string_view(storage).substr(begin, end - begin)});
    begin = end;
  }
  return parts;
}

}  // namespace dtrain::data
