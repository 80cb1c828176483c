// Queries of settings; the table itself is in schema.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

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

bool Range::contains(double value) const noexcept {
  if (bounds == Bounds::none) return true;
  const bool is_above = bounds == Bounds::open_below ? value > lowest : value >= lowest;
  return is_above && (bounds == Bounds::open_above ? value < highest : value <= highest);
}

std::string Range::text() const {
  // Settings are whole or simple numbers: %g would print 16777216 as 1.67772e+07.
  const auto number = [](double value) { return fmt::format("{}", value); };
  if (bounds == Bounds::none) return {};
  if (bounds == Bounds::open_above) {
    return fmt::format("at least {} and below {}", number(lowest), number(highest));
  }
  if (bounds == Bounds::open_below) {
    return fmt::format("above {}, at most {}", number(lowest), number(highest));
  }
  if (highest == std::numeric_limits<double>::max()) return "at least " + number(lowest);
  return number(lowest) + " to " + number(highest);
}

std::string Range::brief() const {
  constexpr double kNobodyMeets = 1e6;
  if (bounds == Bounds::closed && highest >= kNobodyMeets)
    return fmt::format("at least {}", lowest);
  if (bounds == Bounds::open_below && highest >= kNobodyMeets)
    return fmt::format("above {}", lowest);
  return text();
}

std::string choices_text(const Setting& setting) {
  std::string names;
  for (const Choice& choice : setting.choices) {
    if (!names.empty()) names += ", ";
    names += choice.name;
  }
  return names;
}

}  // namespace dtrain::config
