// Sets and prints settings by key. The functions are in config::Config's namespace, so that
// argument-dependent lookup finds them.
#pragma once

#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/config/input/assign.h"

namespace dtrain::config {

/// Sets a setting as --set KEY=VALUE does.
inline void set(Config& config, std::string_view key, std::string_view value) {
  assign_text(*find_key(key), value, key, config);
}

template <EnumSetting Value>
std::ostream& operator<<(std::ostream& out, Value value) {
  return out << text_of(value);
}

template <ParsedValue Value>
std::ostream& operator<<(std::ostream& out, const Value& value) {
  return out << value.text();
}

}  // namespace dtrain::config

namespace dtrain::testing {

/// Changes a setting to a value other than its default.
inline void change(const config::Setting& setting, config::Config& config) {
  const auto number = [&]<typename T>(config::FieldOf<T> field) {
    T& value = field(config);
    if constexpr (std::is_same_v<T, bool>) {
      value = !value;
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      value = {"a", "b"};
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      value = std::numeric_limits<std::uint64_t>::max();
    } else if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) {
      value = 0.1 + 0.2;
    } else if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) {
      value = 7;
    } else {
      value += 1;
    }
  };
  const auto text = [&](const config::TextField&) {
    const std::string before = config::value_text(setting, config);
    for (const char* value : {"text \"with\"\nünusual 字", "1", "size:7", "every:3", "chunked:5",
                              "disk:/a", "topk:0.5", "gpipe"}) {
      try {
        config::assign_text(setting, value, setting.key, config);
      } catch (const base::Error&) {
        continue;
      }
      if (config::value_text(setting, config) != before) return;
    }
    for (const config::Choice& choice : setting.allowed.choices) {
      config::assign_text(setting, choice.name, setting.key, config);
      if (config::value_text(setting, config) != before) return;
    }
  };
  std::visit(
      [&](auto field) {
        if constexpr (std::is_pointer_v<decltype(field)>) {
          number(field);
        } else {
          text(field);
        }
      },
      setting.field);
}

}  // namespace dtrain::testing
