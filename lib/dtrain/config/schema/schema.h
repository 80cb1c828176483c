// The table of settings. Flags, file keys, help, documentation, printing, saving and validation are
// all derived from it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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
  import_checkpoint = 16,
  doctor = 32 | train,  ///< takes the settings of train, has none of its own
  plan = 64 | train,    ///< takes the settings of train and its own
  evaluate = 128
};
inline constexpr Command kCommands[] = {Command::train,
                                        Command::generate,
                                        Command::verify,
                                        Command::export_checkpoint,
                                        Command::import_checkpoint,
                                        Command::doctor,
                                        Command::plan,
                                        Command::evaluate};
using CommandSet = unsigned;

[[nodiscard]] std::string_view name_of(Command command) noexcept;

/// Accessor of a setting of type T in a Config.
template <typename T>
using FieldOf = T& (*)(Config&);

/// Accessors of a setting that files and flags write as text: a type of values.h, or plain text.
struct TextField {
  /// Parses `text` into `config`; returns false, and changes nothing, if it is invalid.
  bool (*read)(std::string_view text, Config& config);
  std::string (*text)(const Config& config);
};

/// A number that dtrain may choose: std::nullopt, written "auto" in files and flags.
template <typename T>
using AutoFieldOf = FieldOf<std::optional<T>>;
inline constexpr std::string_view kAutomatic = "auto";

using Field = std::variant<FieldOf<bool>, FieldOf<std::int64_t>, FieldOf<std::uint64_t>,
                           FieldOf<double>, AutoFieldOf<std::int64_t>, AutoFieldOf<double>,
                           FieldOf<std::vector<std::string>>, TextField>;

/// Allowed numeric range of a setting.
struct Range {
  enum class Bounds { none, closed, open_above, open_below };
  Bounds bounds = Bounds::none;
  double lowest = 0;
  double highest = 0;

  [[nodiscard]] bool contains(double value) const noexcept;
  /// "1 to 65536", "at least 0 and below 1", ...; empty if unbounded.
  [[nodiscard]] std::string text() const;
  /// The same for help texts: omits an upper bound that is far beyond practical values.
  [[nodiscard]] std::string brief() const;
};

/// The values that a setting accepts. At most one member is set; without one, its field accepts
/// every value of its type.
struct AllowedValues {
  Range range = {};
  std::span<const Choice> choices = {};
  std::string_view syntax = {};  ///< texts of a type of values.h, for messages: "it must be ..."
};

/// The reaction of a resume to a setting that differs from the checkpoint's.
enum class OnResume {
  free,            ///< accepts it: later steps keep their bits
  reported,        ///< accepts it with a warning: later steps change bits
  needs_new_data,  ///< rejects it without checkpoint.new_data: it selects the samples of a step
  fixed,           ///< rejects it: the results depend on it
  not_compared,    ///< ignores it: it applies to one start only
};
using ResumeRule = OnResume (*)(const Config& now, const Config& saved);
inline constexpr ResumeRule kFreeOnResume = [](const Config&, const Config&) {
  return OnResume::free;
};

using Condition = bool (*)(const Config& resolved);

/// A condition without which a setting has no effect.
struct Requirement {
  std::string_view unmet_text;  ///< completes "--flag VALUE has no effect ..."
  Condition is_met;
  std::string_view value_key = {};  ///< key of the setting whose value replaces {} in unmet_text
};

/// Conditions that must all hold for a setting to have an effect.
struct Requirements {
  std::array<const Requirement*, 3> all = {};  ///< unused entries are null
};

/// Former key and flag of a setting, which remain valid.
struct FormerName {
  std::string_view key = {};
  std::string_view flag = {};
};

/// A trait of a list setting: each use of the flag adds its text, which may contain commas.
struct Repeatable {};

/// A row of the table: seven columns, followed by optional traits in any order.
struct Setting {
  template <typename... Traits>
  constexpr Setting(std::string_view key_, std::string_view flag_, std::string_view value_name_,
                    std::string_view unit_, std::string_view help_, CommandSet commands_,
                    Field field_, Traits... traits)
      : key(key_),
        flag(flag_),
        value_name(value_name_),
        unit(unit_),
        help(help_),
        commands(commands_),
        field(field_) {
    (add(traits), ...);
  }

  std::string_view key;         ///< in files and --set: "model.width"
  std::string_view flag;        ///< "--width"; "PATH" for a positional argument
  std::string_view value_name;  ///< "N" in "--width N"; empty for a switch, which takes no value
  std::string_view unit;        ///< "steps", "seconds", ...; empty if the value has no unit
  std::string_view help;
  CommandSet commands;
  Field field;
  AllowedValues allowed = {};
  ResumeRule on_resume = kFreeOnResume;
  Requirements requirements = {};
  Condition changes_bits = nullptr;  ///< when the reproducibility class includes it; or null
  std::string_view family = {};      ///< the only model family that reads it; empty for all
  FormerName former = {};
  bool is_repeatable = false;

  [[nodiscard]] bool is_for(Command command) const noexcept {
    return (commands & static_cast<unsigned>(command)) != 0;
  }
  /// As is_for, but false for train's settings that `command` takes as well.
  [[nodiscard]] bool belongs_to(Command command) const noexcept {
    return (commands & std::bit_floor(static_cast<unsigned>(command))) != 0;
  }
  /// True if `command` reads it in this configuration, which excludes settings of other families.
  [[nodiscard]] bool is_used(Command command, const Config& config) const noexcept {
    return is_for(command) && (family.empty() || family == config.model.name);
  }
  [[nodiscard]] bool is_positional() const noexcept { return !flag.starts_with('-'); }
  [[nodiscard]] bool is_switch() const noexcept { return value_name.empty() && !is_positional(); }

 private:
  constexpr void add(AllowedValues values) { allowed = values; }
  constexpr void add(ResumeRule rule) { on_resume = rule; }
  constexpr void add(Requirements when) { requirements = when; }
  constexpr void add(Condition where) { changes_bits = where; }
  constexpr void add(FormerName name) { former = name; }
  constexpr void add(Repeatable /*trait*/) { is_repeatable = true; }
};

/// A section of help and documentation: the settings whose keys start with its prefix.
struct Group {
  std::string_view title;
  std::string_view prefix;  ///< "model."
};

/// All settings, including those of every model family (family.h), in the order of the help.
[[nodiscard]] std::span<const Setting> settings() noexcept;
[[nodiscard]] std::span<const Group> groups() noexcept;

/// The setting with this key or flag, or null. Keys are unique. Flags are unique within a command;
/// find_flag returns the first setting with the flag.
[[nodiscard]] const Setting* find_key(std::string_view key) noexcept;
[[nodiscard]] const Setting* find_flag(std::string_view flag) noexcept;

/// The setting's choices, separated by commas: "single, ddp".
[[nodiscard]] std::string choices_text(const Setting& setting);

}  // namespace dtrain::config
