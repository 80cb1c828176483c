#include "dtrain/config/help.h"

#include <fmt/format.h>

#include "dtrain/config/assign.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kTextColumn = 28;

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

}  // namespace

std::string flags_help(Command command) {
  std::string text;
  for (const Group& group : groups()) {
    std::string entries;
    for (const Setting& setting : settings()) {
      if (!setting.key.starts_with(group.prefix) || !setting.is_for(command)) continue;
      entries += entry(fmt::format("{} {}", setting.flag, setting.value_name),
                       std::string(setting.help) + notes(setting));
    }
    if (!entries.empty()) text += fmt::format("{}\n{}\n", group.title, entries);
  }
  text += "configuration\n";
  text += entry("--config FILE", "JSON with comments; flags win over it (docs/configuration.md)");
  if ((static_cast<unsigned>(command) & static_cast<unsigned>(Command::train)) != 0) {
    text += entry("--deepspeed-config FILE",
                  "what a configuration of DeepSpeed asks for; flags win over it (docs/habits.md)");
  }
  text += entry("--set KEY=VALUE", "any setting by its key in files, as model.width=64");
  text += entry("--print-config", "print the resolved settings as JSON and end");
  text += entry("--help", "print this and end");
  return text;
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
