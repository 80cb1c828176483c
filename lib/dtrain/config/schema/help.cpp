#include <fmt/format.h>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/resolve/advice.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

// " (default: 512 tokens; 1 to 65536)"
std::string notes(const Setting& setting) {
  std::string text;
  if (const std::string value = default_text(setting); !value.empty() && !setting.is_switch()) {
    text = "default: " + value;
    if (!setting.unit.empty()) text += fmt::format(" {}", setting.unit);
  }
  std::string allowed = setting.allowed.range.brief();
  if (!setting.allowed.choices.empty()) allowed = "choices: " + choices_text(setting);
  if (!allowed.empty()) text += (text.empty() ? "" : "; ") + allowed;
  return text.empty() ? text : " (" + text + ")";
}

// The choices or the range of the setting.
std::string allowed_text(const Setting& setting) {
  return setting.allowed.choices.empty() ? setting.allowed.range.text() : choices_text(setting);
}

// One cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// The commands for which `takes` returns true, separated by commas.
std::string commands_text(const Setting& setting, bool (Setting::*takes)(Command) const noexcept) {
  std::string text;
  for (const Command command : kCommands) {
    if (!(setting.*takes)(command)) continue;
    if (!text.empty()) text += ", ";
    text += name_of(command);
  }
  return text;
}

std::string markdown_row(const Setting& setting) {
  const std::string value = default_text(setting);
  const std::string flag = setting.value_name.empty()
                               ? std::string(setting.flag)
                               : fmt::format("{} {}", setting.flag, setting.value_name);
  return fmt::format("| `{}` | `{}` | {} | {} | {} | {} | {} |\n", setting.key, cell(flag),
                     value.empty() ? "" : "`" + value + "`", setting.unit,
                     cell(allowed_text(setting)), cell(setting.help),
                     commands_text(setting, &Setting::belongs_to));
}

// Help of all flags in a group, for every command.
std::string group_help(const Group& group, std::size_t columns) {
  std::string text = fmt::format("{}\n", group.title);
  for (const Setting& setting : settings()) {
    if (setting.is_positional() || !setting.key.starts_with(group.prefix)) continue;
    text += base::help_entry(fmt::format("{} {}", setting.flag, setting.value_name),
                             setting_summary(setting), columns);
  }
  return text;
}

bool matches(std::string_view wanted, const Setting& setting) {
  const std::string key = normalized_name(setting.key);
  const std::string_view former = setting.former.flag;
  if (!former.empty() && wanted == normalized_name(former.substr(2))) return true;
  if (wanted == key || (!setting.is_positional() && wanted == setting.flag.substr(2))) return true;
  return !setting.is_positional() && wanted == std::string_view(key).substr(key.find('.') + 1);
}

std::string type_text(const Setting& setting) {
  if (setting.is_switch()) return "a switch, without a value; true or false in files";
  if (!setting.allowed.choices.empty()) return "one of a list of words";
  if (!setting.allowed.syntax.empty()) return "text in the form below";
  if (std::holds_alternative<FieldOf<bool>>(setting.field))
    return "on or off; true or false in files";
  if (std::holds_alternative<FieldOf<double>>(setting.field)) return "a number";
  if (std::holds_alternative<AutoFieldOf<double>>(setting.field)) return "a number, or auto";
  if (std::holds_alternative<AutoFieldOf<std::int64_t>>(setting.field)) {
    return "a whole number, also as 1e4, or auto";
  }
  if (setting.is_repeatable) return "text, one per use of the flag; a list in files";
  if (std::holds_alternative<FieldOf<std::vector<std::string>>>(setting.field)) {
    return "names separated by commas; a list in files";
  }
  if (std::holds_alternative<TextField>(setting.field)) return "text";
  return "a whole number; 1e4 is accepted";
}

std::string resume_text(const Setting& setting) {
  if (setting.on_resume == rows::kFixed) return "must not change: it affects the results";
  if (setting.on_resume == rows::kReported) return "may change; the start reports it";
  if (setting.on_resume == rows::kNeedsNewData) return "may change only with --new-data";
  if (setting.on_resume == kFreeOnResume || setting.on_resume == rows::kNotCompared)
    return "may change";
  return "may change; the start reports it if it affects later steps";
}

std::string explanation(const Setting& setting, std::size_t columns) {
  std::string text = setting.is_positional()
                         ? std::string(setting.flag)
                         : fmt::format("{} {}", setting.flag, setting.value_name);
  text.erase(text.find_last_not_of(' ') + 1);
  text += '\n';
  const auto entry = [columns](std::string_view name, std::string_view what) {
    return base::help_entry(name, what, columns);
  };
  const std::string value = default_text(setting);
  const std::string unit = setting.unit.empty() ? "" : fmt::format(" {}", setting.unit);
  const std::string allowed =
      setting.allowed.syntax.empty() ? allowed_text(setting) : std::string(setting.allowed.syntax);
  text += entry("key", setting.key);
  text += entry("meaning", setting.help);
  text += entry("type", type_text(setting));
  text += entry("default", value.empty() ? "empty" : value + unit);
  if (!allowed.empty()) text += entry("allowed", allowed);
  if (setting.is_for(Command::train)) text += entry("when a run resumes", resume_text(setting));
  if (!setting.family.empty()) text += entry("model family", setting.family);
  return text + entry("used by", commands_text(setting, &Setting::is_for));
}

}  // namespace

std::string setting_summary(const Setting& setting) {
  return std::string(setting.help) + notes(setting);
}

std::optional<std::string> setting_help(std::string_view name, std::size_t columns) {
  const std::string wanted = normalized_name(name);
  std::string text;
  for (const Setting& setting : settings()) {
    if (!matches(wanted, setting)) continue;
    if (!text.empty()) text += '\n';
    text += explanation(setting, columns);
  }
  for (const Group& group : groups()) {
    if (group.prefix.substr(0, group.prefix.size() - 1) != wanted) continue;
    text += (text.empty() ? "" : "\n") + group_help(group, columns);
  }
  if (!text.empty()) return text;
  if (const ForeignFlags* foreign = find_foreign_flag(name)) {
    if (foreign->key.empty()) fail(ErrorKind::usage, "{}: {}", name, foreign->note);
    return fmt::format("{} of other programs is {} here{}\n\n{}", name,
                       find_key(foreign->key)->flag,
                       foreign->note.empty() ? "" : fmt::format(" ({})", foreign->note),
                       explanation(*find_key(foreign->key), columns));
  }
  return std::nullopt;
}

std::string settings_markdown() {
  std::string text =
      "# Settings\n\n"
      "Every setting of dtrain, written from `lib/dtrain/config/schema/tables/` by `dtrain "
      "settings`. "
      "[configuration.md](configuration.md) says how files and flags combine. `doctor`, `plan` and "
      "`data baseline` take the settings that train uses, too.\n";
  for (const Group& group : groups()) {
    text += fmt::format(
        "\n## {}\n\n"
        "| key | flag | default | unit | allowed | meaning | used by |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n",
        group.title);
    for (const Setting& setting : settings()) {
      if (setting.key.starts_with(group.prefix)) text += markdown_row(setting);
    }
  }
  return text;
}

}  // namespace dtrain::config
