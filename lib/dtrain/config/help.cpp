#include "dtrain/config/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/foreign_names.h"
#include "dtrain/config/rows.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

constexpr std::size_t kColumns = 100;
constexpr std::size_t kTextColumn = 28;

// Flags that are not settings.
struct OtherFlag {
  std::string_view usage;
  std::string_view help;
  bool is_of_train = false;  // only of train and of commands that take its flags
};
constexpr OtherFlag kOtherFlags[] = {
    {"--config FILE", "JSON with comments; flags override it (docs/configuration.md)"},
    {"--deepspeed-config FILE",
     "settings of a DeepSpeed configuration; flags override them (docs/habits.md)",
     /*is_of_train=*/true},
    {"--set KEY=VALUE", "any setting by its key, for example model.width=64"},
    {"--quiet", "or -q: print only warnings, errors and the closing summary",
     /*is_of_train=*/true},
    {"--print-config", "print the resolved settings as JSON and exit"},
    {"--help", "print this and exit"}};

constexpr std::string_view kMostUsed[] = {
    "--data",  "--config", "--run-dir",      "--resume",   "--val-fraction",
    "--steps", "--lr",     "--global-batch", "--strategy", "--checkpoint-every"};

// "  --flag VALUE   text", the text wrapped and indented.
std::string entry(std::string_view flag, std::string_view text) {
  std::string result = fmt::format("  {:<{}}", flag, kTextColumn - 3);
  result += ' ';
  std::size_t column = result.size();
  if (column > kTextColumn) {
    result += '\n' + std::string(kTextColumn, ' ');
    column = kTextColumn;
  }
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (column + space > kColumns && column > kTextColumn) {
      result.back() = '\n';  // the space before this word
      result += std::string(kTextColumn, ' ');
      column = kTextColumn;
    }
    result += text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    column += space;
    if (!text.empty()) {
      result += ' ';
      ++column;
    }
  }
  return result + '\n';
}

// " (default 512 tokens; 1 to 65536)"
std::string notes(const Setting& setting) {
  std::string text;
  if (const std::string value = default_text(setting); !value.empty() && !setting.is_switch()) {
    text = "default " + value;
    if (!setting.unit.empty()) text += fmt::format(" {}", setting.unit);
  }
  std::string allowed = setting.range.brief();
  if (!setting.choices.empty()) allowed = "of " + working_choices(setting);
  if (!allowed.empty()) text += (text.empty() ? "" : "; ") + allowed;
  return text.empty() ? text : " (" + text + ")";
}

// The values that the setting takes, and the words that are reserved.
std::string allowed_text(const Setting& setting) {
  if (setting.choices.empty()) return setting.range.text();
  std::string reserved;
  for (const Choice& choice : setting.choices) {
    if (!choice.works()) reserved += (reserved.empty() ? "" : ", ") + std::string(choice.name);
  }
  return working_choices(setting) + (reserved.empty() ? "" : "; reserved: " + reserved);
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

std::string commands_text(const Setting& setting) {
  std::string text;
  for (const Command command : kCommands) {
    if (!setting.is_of(command)) continue;
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
                     cell(allowed_text(setting)), cell(setting.help), commands_text(setting));
}

std::string flag_entry(const Setting& setting) {
  return entry(fmt::format("{} {}", setting.flag, setting.value_name),
               std::string(setting.help) + notes(setting));
}

// Flags of all commands if none is given.
std::string group_entries(const Group& group, const Command* command) {
  std::string entries;
  for (const Setting& setting : settings()) {
    const bool is_shown = command == nullptr ? !setting.is_word() : setting.is_for(*command);
    if (setting.key.starts_with(group.prefix) && is_shown) entries += flag_entry(setting);
  }
  return entries;
}

const OtherFlag* find_other(std::string_view flag) {
  const auto* found = std::ranges::find_if(kOtherFlags, [&](const OtherFlag& other) {
    return other.usage.substr(0, other.usage.find(' ')) == flag;
  });
  return found == std::end(kOtherFlags) ? nullptr : found;
}

// "--Grad_Clip" -> "grad-clip".
std::string spoken_form(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string form;
  for (const char c : name) {
    form += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return form;
}

bool means(std::string_view wanted, const Setting& setting) {
  const std::string key = spoken_form(setting.key);
  if (wanted == key || (!setting.is_word() && wanted == setting.flag.substr(2))) return true;
  return !setting.is_word() && wanted == std::string_view(key).substr(key.find('.') + 1);
}

std::string type_text(const Setting& setting) {
  if (setting.is_switch()) return "a switch, without a value; true or false in files";
  if (!setting.choices.empty()) return "one word of a list";
  if (!setting.form.text.empty()) return "text of a form";
  if (std::holds_alternative<FieldOf<bool>>(setting.field))
    return "on or off; true or false in files";
  if (std::holds_alternative<FieldOf<double>>(setting.field)) return "a number";
  if (std::holds_alternative<FieldOf<std::vector<std::string>>>(setting.field)) {
    return "names with commas; a list in files";
  }
  if (std::holds_alternative<TextField>(setting.field)) return "text";
  return "a whole number, also as 1e4";
}

std::string resume_text(const Setting& setting) {
  if (setting.on_resume == rows::kFixed) return "must not change: it affects the results";
  if (setting.on_resume == rows::kNoted) return "may change; the start reports it";
  if (setting.on_resume == find_key("run.dir")->on_resume) return "may change";
  return "may change; the start reports it if it affects later steps";
}

std::string explanation(const Setting& setting) {
  std::string text = setting.is_word() ? std::string(setting.flag)
                                       : fmt::format("{} {}", setting.flag, setting.value_name);
  text.erase(text.find_last_not_of(' ') + 1);
  text += '\n';
  const std::string value = default_text(setting);
  const std::string unit = setting.unit.empty() ? "" : fmt::format(" {}", setting.unit);
  const std::string allowed =
      setting.form.text.empty() ? allowed_text(setting) : std::string(setting.form.text);
  text += entry("key", setting.key);
  text += entry("meaning", setting.help);
  text += entry("type", type_text(setting));
  text += entry("default", value.empty() ? "empty" : value + unit);
  if (!allowed.empty()) text += entry("allowed", allowed);
  if (setting.is_for(Command::train)) text += entry("when a run resumes", resume_text(setting));
  if (!setting.family.empty()) text += entry("of the family", setting.family);
  return text + entry("used by", commands_text(setting));
}

}  // namespace

std::string flags_help(Command command) {
  std::string text;
  for (const Group& group : groups()) {
    const std::string entries = group_entries(group, &command);
    if (!entries.empty()) text += fmt::format("{}\n{}\n", group.title, entries);
  }
  text += "configuration\n";
  const bool trains = (static_cast<unsigned>(command) & static_cast<unsigned>(Command::train)) != 0;
  for (const OtherFlag& other : kOtherFlags) {
    if (trains || !other.is_of_train) text += entry(other.usage, other.help);
  }
  return text;
}

std::string most_used_flags() {
  std::string text = "most used flags\n";
  for (const std::string_view flag : kMostUsed) {
    const Setting* setting = find_flag(flag);
    text += setting != nullptr ? flag_entry(*setting)
                               : entry(find_other(flag)->usage, find_other(flag)->help);
  }
  return text + "\n";
}

std::optional<std::string> setting_help(std::string_view name) {
  const std::string wanted = spoken_form(name);
  if (const OtherFlag* other = find_other(fmt::format("--{}", wanted)))
    return entry(other->usage, other->help);
  std::string text;
  for (const Setting& setting : settings()) {
    if (!means(wanted, setting)) continue;
    if (!text.empty()) text += '\n';
    text += explanation(setting);
  }
  for (const Group& group : groups()) {
    if (group.prefix.substr(0, group.prefix.size() - 1) != wanted) continue;
    text += fmt::format("{}{}\n{}", text.empty() ? "" : "\n", group.title,
                        group_entries(group, nullptr));
  }
  if (!text.empty()) return text;
  if (const ForeignName* foreign = find_foreign(name)) {
    if (foreign->key.empty()) fail(ErrorKind::usage, "{}: {}", name, foreign->note);
    return fmt::format("{} in other programs is {} here{}\n\n{}", name,
                       find_key(foreign->key)->flag,
                       foreign->note.empty() ? "" : fmt::format(" ({})", foreign->note),
                       explanation(*find_key(foreign->key)));
  }
  return std::nullopt;
}

std::vector<std::string_view> setting_names() {
  std::vector<std::string_view> names;
  for (const OtherFlag& other : kOtherFlags) {
    names.push_back(other.usage.substr(2, other.usage.find(' ') - 2));
  }
  for (const Setting& setting : settings()) {
    if (!setting.is_word()) names.push_back(setting.flag.substr(2));
  }
  for (const Setting& setting : settings()) names.push_back(setting.key);
  return names;
}

std::string settings_markdown() {
  std::string text =
      "# Settings\n\n"
      "Every setting of dtrain, written from `lib/dtrain/config/schema.cpp` by `dtrain settings`. "
      "[configuration.md](configuration.md) says how files and flags combine.\n";
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
