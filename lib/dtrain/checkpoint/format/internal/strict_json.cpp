#include "dtrain/checkpoint/format/internal/strict_json.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::checkpoint::format {

using Json = nlohmann::json;

bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

std::optional<std::int64_t> size_in(const Json& value) {
  constexpr auto kMax = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) return std::nullopt;
  return value.get<std::int64_t>();
}

Json parse_strictly(std::string_view text, int max_depth, const Refuse& refuse) {
  // The JSON parser would treat a NUL as the end of the text.
  if (text.find('\0') != std::string_view::npos) refuse("with a NUL byte");
  const auto levels = static_cast<std::size_t>(max_depth) + 1;
  std::vector<std::set<std::string>> keys(levels);  // seen so far, by depth
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > max_depth) refuse("that is nested too deeply");
    const auto level = static_cast<std::size_t>(depth);
    if (event == Json::parse_event_t::object_end && level + 1 < levels) keys[level + 1].clear();
    if (event == Json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!is_printable(name)) refuse("with control characters in a name");
      if (!keys[level].insert(name).second) refuse(fmt::format("that names '{}' twice", name));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::parse_error& error) {
    refuse(fmt::format("that is not JSON (at byte {})", error.byte));
  } catch (const Json::exception&) {
    refuse("with a number out of range");
  }
  DTRAIN_CHECK(false, "refuse() must throw");
}

}  // namespace dtrain::checkpoint::format
