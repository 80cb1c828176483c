// The one table of settings: flags, file keys, help, documentation, printing, saving and validation
// all come from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/config/config.h"

namespace dtrain::config {

/// The subcommands that take settings; the values are bits of a CommandSet.
enum class Command : unsigned {
  train = 1,
  generate = 2,
  verify = 4,
  export_checkpoint = 8,
  import_checkpoint = 16
};
inline constexpr Command kCommands[] = {Command::train, Command::generate, Command::verify,
                                        Command::export_checkpoint, Command::import_checkpoint};
using CommandSet = unsigned;

[[nodiscard]] std::string_view name_of(Command command) noexcept;

/// Where a setting of type T lies in a Config.
template <typename T>
using FieldOf = T& (*)(Config&);
using Field =
    std::variant<FieldOf<bool>, FieldOf<std::int64_t>, FieldOf<std::uint64_t>, FieldOf<double>,
                 FieldOf<std::string>, FieldOf<std::vector<std::string>>>;

/// The numbers a setting allows.
struct Range {
  enum class Bounds { none, closed, open_above, open_below };
  Bounds bounds = Bounds::none;
  double lowest = 0;
  double highest = 0;

  [[nodiscard]] bool contains(double value) const noexcept;
  /// "1 to 65536", "at least 0 and below 1", ...; empty without bounds.
  [[nodiscard]] std::string text() const;
  /// The same for people who choose a value: without an upper bound that nobody meets.
  [[nodiscard]] std::string brief() const;
};

/// A word a setting allows, or a known one that is refused: "NAME REFUSAL; use one of: ...".
struct Choice {
  std::string_view name;
  std::string_view refusal = {};

  [[nodiscard]] bool works() const noexcept { return refusal.empty(); }
};

struct Setting {
  std::string_view key;         ///< in files and --set: "model.width"
  std::string_view flag;        ///< "--width"; "PATH": a word in this place, without a flag
  std::string_view value_name;  ///< "N" in "--width N"; empty: a switch without a value
  std::string_view unit;        ///< "steps", "seconds", ...; empty: a plain number or word
  std::string_view help;
  CommandSet commands;
  Field field;
  Range range = {};
  std::span<const Choice> choices = {};

  [[nodiscard]] bool is_for(Command command) const noexcept {
    return (commands & static_cast<unsigned>(command)) != 0;
  }
  [[nodiscard]] bool is_word() const noexcept { return !flag.starts_with('-'); }
  [[nodiscard]] bool is_switch() const noexcept { return value_name.empty() && !is_word(); }
};

/// A heading of help and documentation: the settings whose keys start with one of its prefixes.
struct Group {
  std::string_view title;
  std::string_view prefix;  ///< "model."
};

[[nodiscard]] std::span<const Setting> settings() noexcept;
[[nodiscard]] std::span<const Group> groups() noexcept;

/// The setting with this key or flag, or null. Keys are unique, flags within a command: of several
/// settings with one flag the first is found.
[[nodiscard]] const Setting* find_key(std::string_view key) noexcept;
[[nodiscard]] const Setting* find_flag(std::string_view flag) noexcept;

/// "single, ddp": the words the setting allows.
[[nodiscard]] std::string working_choices(const Setting& setting);

/// Calls function(value) with the setting's value in `config`, as a reference of its own type.
template <typename Function>
decltype(auto) visit_value(const Setting& setting, Config& config, Function&& function) {
  return std::visit([&](auto field) -> decltype(auto) { return function(field(config)); },
                    setting.field);
}
template <typename Function>
decltype(auto) visit_value(const Setting& setting, const Config& config, Function&& function) {
  // A field only picks a member; one accessor for both kinds of Config needs this cast.
  return std::visit(
      [&](auto field) -> decltype(auto) {
        return function(std::as_const(field(const_cast<Config&>(config))));
      },
      setting.field);
}

}  // namespace dtrain::config
