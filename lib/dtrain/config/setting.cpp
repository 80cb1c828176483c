// Queries of settings; the table itself is in schema.cpp.
#include <algorithm>
#include <bit>

#include "dtrain/config/schema.h"

namespace dtrain::config {

std::string_view name_of(Command command) noexcept {
  constexpr std::string_view kNames[] = {
      "train",  "generate", "verify",  "checkpoint export", "checkpoint import",
      "doctor", "plan",     "evaluate"};
  return kNames[std::bit_width(static_cast<unsigned>(command)) - 1];
}

const Setting* find_key(std::string_view key) noexcept {
  const auto found = std::ranges::find(settings(), key, &Setting::key);
  return found == settings().end() ? nullptr : &*found;
}

const Setting* find_flag(std::string_view flag) noexcept {
  const auto found = std::ranges::find(settings(), flag, &Setting::flag);
  return found == settings().end() ? nullptr : &*found;
}

std::string working_choices(const Setting& setting) {
  std::string names;
  for (const Choice& choice : setting.choices) {
    if (!choice.works()) continue;
    if (!names.empty()) names += ", ";
    names += choice.name;
  }
  return names;
}

}  // namespace dtrain::config
