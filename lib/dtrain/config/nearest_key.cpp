#include "dtrain/config/nearest_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "dtrain/base/nearest.h"
#include "dtrain/config/foreign_names.h"

namespace dtrain::config {
namespace {

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

}  // namespace

std::string_view nearest_key(std::string_view key) {
  std::vector<std::string_view> keys;
  std::vector<std::string_view> parts;
  for (const Setting& setting : settings()) {
    keys.push_back(setting.key);
    parts.push_back(last_part(setting.key));
  }
  if (const std::string_view whole = base::nearest(key, keys); !whole.empty()) return whole;
  // "eval.sequences" for report.eval_sequences, before what "sequences" alone may stand for.
  std::string_view part = base::nearest(key, parts);
  if (part.empty()) part = base::nearest(last_part(key), parts);
  if (part.empty()) return part;
  return keys[static_cast<std::size_t>(std::ranges::find(parts, part) - parts.begin())];
}

std::string advice_for_key(std::string_view key, Command command) {
  for (const Group& group : groups()) {
    if (group.prefix.substr(0, group.prefix.size() - 1) != key) continue;
    return fmt::format(", which is a group: its settings stand in an object, {{\"{}\": {{...}}}}",
                       key);
  }
  std::string advice = foreign_advice(key, NameKind::key, command);
  return advice.empty() ? base::did_you_mean(nearest_key(key)) : advice;
}

}  // namespace dtrain::config
