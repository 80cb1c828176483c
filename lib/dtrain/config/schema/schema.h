// The one table of settings: flags, file keys, help, documentation, printing, saving and validation
// all come from it.
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
  doctor = 32 | train,  ///< takes the settings of train, and belongs to no row of its own
  plan = 64 | train,    ///< takes the settings of train beside its own
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

/// Where a setting of type T lies in a Config.
template <typename T>
using FieldOf = T& (*)(Config&);

/// A setting that files and flags give as a text: a value of values.h, or the text
/// itself.
struct TextField {
  /// Returns false, and changes nothing, for a text that no value has.
  bool (*read)(std::string_view text, Config& config);
  std::string (*text)(const Config& config);
};

/// A number that may be left to dtrain: none, which files and flags write as "auto".
template <typename T>
using AutoFieldOf = FieldOf<std::optional<T>>;
inline constexpr std::string_view kAutomatic = "auto";

using Field = std::variant<FieldOf<bool>, FieldOf<std::int64_t>, FieldOf<std::uint64_t>,
                           FieldOf<double>, AutoFieldOf<std::int64_t>, AutoFieldOf<double>,
                           FieldOf<std::vector<std::string>>, TextField>;

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

/// The texts a setting of values.h allows, for messages: "it must be ...".
struct Form {
  std::string_view text = {};
};

/// How a run that goes on treats a setting that differs from its checkpoint's.
enum class OnResume {
  free,           ///< it may differ: later steps keep their bits
  noted,          ///< it may, and triggers a warning: the bits of later steps change with it
  with_new_data,  ///< only with checkpoint.new_data: it decides which samples a step reads
  fixed,          ///< it may not: it decides the numbers of the run
  of_start,       ///< it concerns one start alone and is not compared
};
using ResumeRule = OnResume (*)(const Config& now, const Config& saved);

using Condition = bool (*)(const Config& resolved);

/// A condition for a setting to have an effect.
struct Need {
  std::string_view otherwise;  ///< the end of "--flag VALUE has no effect ..."
  Condition is_met;
  std::string_view shown = {};  ///< the key of the setting whose value stands for {} in it
};

/// A setting has an effect where all its needs are met.
struct Effect {
  std::array<const Need*, 3> needs = {};  ///< null: none
};

/// A row of the table: seven columns, then in any order what else holds for the setting.
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
  std::string_view flag;        ///< "--width"; "PATH": a word in this place, without a flag
  std::string_view value_name;  ///< "N" in "--width N"; empty: a switch without a value
  std::string_view unit;        ///< "steps", "seconds", ...; empty: a plain number or word
  std::string_view help;
  CommandSet commands;
  Field field;
  Range range = {};
  std::span<const Choice> choices = {};
  Form form = {};
  ResumeRule on_resume = [](const Config&, const Config&) { return OnResume::free; };
  Effect effect = {};
  Condition changes_bits = nullptr;  ///< where the reproducibility class holds it; null: never
  std::string_view family = {};      ///< the model family it belongs to; empty: not to one alone

  [[nodiscard]] bool is_for(Command command) const noexcept {
    return (commands & static_cast<unsigned>(command)) != 0;
  }
  /// The same without what the command takes of train's.
  [[nodiscard]] bool is_of(Command command) const noexcept {
    return (commands & std::bit_floor(static_cast<unsigned>(command))) != 0;
  }
  /// True if `command` reads it in this configuration: other families' own settings are not read.
  [[nodiscard]] bool is_used(Command command, const Config& config) const noexcept {
    return is_for(command) && (family.empty() || family == config.model.name);
  }
  [[nodiscard]] bool is_word() const noexcept { return !flag.starts_with('-'); }
  [[nodiscard]] bool is_switch() const noexcept { return value_name.empty() && !is_word(); }

 private:
  constexpr void add(Range allowed) { range = allowed; }
  constexpr void add(std::span<const Choice> allowed) { choices = allowed; }
  constexpr void add(Form allowed) { form = allowed; }
  constexpr void add(ResumeRule rule) { on_resume = rule; }
  constexpr void add(Effect when) { effect = when; }
  constexpr void add(Condition where) { changes_bits = where; }
};

/// A heading of help and documentation: the settings whose keys start with one of its prefixes.
struct Group {
  std::string_view title;
  std::string_view prefix;  ///< "model."
};

/// The rows of schema.cpp and of every model family (family.h).
[[nodiscard]] std::span<const Setting> settings() noexcept;
[[nodiscard]] std::span<const Group> groups() noexcept;

/// The setting with this key or flag, or null. Keys are unique, flags within a command: of several
/// settings with one flag the first is found.
[[nodiscard]] const Setting* find_key(std::string_view key) noexcept;
[[nodiscard]] const Setting* find_flag(std::string_view flag) noexcept;

/// "single, ddp": the words the setting allows.
[[nodiscard]] std::string choices_text(const Setting& setting);

}  // namespace dtrain::config
