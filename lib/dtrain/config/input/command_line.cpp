#include "dtrain/config/input/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "dtrain/base/error.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/resolve/advice.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

// Flags that are not settings.
constexpr const char* kConfigFile = "--config";
constexpr const char* kDeepSpeedFile = "--deepspeed-config";
constexpr const char* kMatch = "--match";
constexpr const char* kMatchBy = "--match-by";
constexpr const char* kSet = "--set";
constexpr const char* kQuiet = "--quiet";
constexpr const char* kVerbose = "--verbose";
constexpr const char* kPrintConfig = "--print-config";

Assignment parse_set(Command command, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    fail(ErrorKind::usage, "--set: found \"{}\", but it must be KEY=VALUE, as in model.width=64",
         text);
  }
  const std::string key = text.substr(0, equals);
  const Setting* setting = find_key(key);
  if (setting == nullptr) {
    fail(ErrorKind::usage, "--set: unknown setting \"{}\"{}", key, advice_for_key(key, command));
  }
  if (!setting->is_for(command)) {
    fail(ErrorKind::usage, "--set: {} is not a setting of dtrain {}", key, name_of(command));
  }
  return {setting, text.substr(equals + 1), "--set " + key};
}

// Rejects an unexpanded "~": shells do not expand it in --run-dir=~/x, which would create a folder of
// that name.
void require_expanded(const CLI::Option& option, const std::string& value) {
  if (value != "~" && !value.starts_with("~/")) return;
  const std::string name = option.get_type_name();
  const bool is_path =
      std::ranges::any_of(std::array{"FILE", "DIR", "PATH", "RUN", "FIXTURE"},
                          [&](const char* part) { return name.find(part) != std::string::npos; });
  if (!is_path) return;
  fail(ErrorKind::usage,
       "{}: found '{}', but shells expand ~ only at the beginning of an unquoted word; write a "
       "space instead of =, or give the full path",
       option.get_name(), value);
}

// Records the path of a file flag. Rejects an empty path, as from a script's unset variable.
void set_file(const std::string& flag, const std::string& file, std::string& path,
              CommandLine& result) {
  if (file.empty()) fail(ErrorKind::usage, "{} is empty: name a file", flag);
  if (!path.empty() && path != file) {
    result.repeated.push_back(fmt::format(
        "{} {} replaces {} {}: a file includes others with \"extends\"", flag, file, flag, path));
  }
  path = file;
}

// Records the value of --match. Rejects an empty one, as from a script's unset variable.
void set_match(const std::string& text, CommandLine& result) {
  if (text.empty()) {
    fail(ErrorKind::usage, "{} is empty: name a run folder or a configuration file", kMatch);
  }
  if (!result.match.empty() && result.match != text) {
    result.repeated.push_back(
        fmt::format("{} {} replaces {} {}", kMatch, text, kMatch, result.match));
  }
  result.match = text;
}

void set_match_by(const std::string& text, CommandLine& result) {
  const auto* found = std::ranges::find(kMatchCounts, text, &Choice::name);
  if (found == std::end(kMatchCounts)) {
    fail(ErrorKind::usage, "{}: found \"{}\", but it must be one of {}, {}", kMatchBy, text,
         MatchBy::parameters, MatchBy::flops);
  }
  result.match_by = static_cast<MatchBy>(found->value);
}

// Records a parsed option. flag: its name, also for a positional argument.
void add_option(const std::string& flag, const std::string& text, CommandLine& result) {
  if (flag == kConfigFile) return set_file(flag, text, result.config_file, result);
  if (flag == kDeepSpeedFile) return set_file(flag, text, result.deepspeed_file, result);
  if (flag == kMatch) return set_match(text, result);
  if (flag == kMatchBy) return set_match_by(text, result);
  if (flag == kSet) return result.assignments.push_back(parse_set(result.command, text));
  const auto found = std::ranges::find_if(settings(), [&](const Setting& setting) {
    return setting.flag == flag && setting.is_for(result.command);
  });
  if (found != settings().end()) result.assignments.push_back({&*found, text, flag});
}

bool takes_train_settings(Command command) {
  return (static_cast<unsigned>(command) & static_cast<unsigned>(Command::train)) != 0;
}

// Rejects several --data instead of taking the last one: in other trainers they form a mixture.
[[noreturn]] void reject_repeated_data(const std::vector<std::string>& files) {
  fail(ErrorKind::usage,
       "--data is given {} times ({}): give one file, or mix several: --data "
       "FILE:WEIGHT,FILE:WEIGHT",
       files.size(), fmt::join(files, ", "));
}

// Adds "--lr is given 2 times (0.1, 0.2): the last one is used" for each repeated flag.
void note_repeated_flags(CommandLine& result) {
  std::map<const Setting*, std::vector<std::string>> values;
  for (const Assignment& flag : result.assignments) {
    values[flag.setting].push_back(flag.text);
  }
  for (const auto& [setting, given] : values) {
    if (given.size() < 2 || setting->is_repeatable) continue;
    const bool is_same = std::ranges::count(given, given.front()) == std::ssize(given);
    if (setting->key == "data.train" && !is_same) reject_repeated_data(given);
    result.repeated.push_back(fmt::format("{} is given {} times ({}): the last one is used",
                                          setting->flag, given.size(), fmt::join(given, ", ")));
  }
}

// Resets settings that `command` does not use, so that they are not checked either.
void reset_unused(Command command, Config& config) {
  const Config plain;
  for (const Setting& setting : settings()) {
    if (!setting.is_for(command)) {
      assign_json(setting, value_json(setting, plain), setting.key, config);
    }
  }
}

// Applies a layer and resets conflicting settings of the layers below.
void apply_layer(std::span<const Assignment> layer, LoadedSettings& loaded) {
  const Config below = loaded.config;
  std::vector<const Setting*> given;
  for (const Assignment& assignment : layer) {
    const Setting& setting = *assignment.setting;
    const bool repeats = setting.is_repeatable && std::ranges::count(given, &setting) > 0;
    if (setting.is_repeatable) {
      // The first use replaces the list of the layers below.
      if (!repeats) assign_json(setting, Json::array(), assignment.origin, loaded.config);
      append_text(setting, assignment.text, assignment.origin, loaded.config);
    } else {
      assign_text(setting, assignment.text, assignment.origin, loaded.config);
    }
    given.push_back(&setting);
  }
  loaded.add_layer(below, given);
}

}  // namespace

bool CommandLine::gives(std::string_view key) const {
  return std::ranges::any_of(assignments,
                             [&](const Assignment& each) { return each.setting->key == key; });
}

void add_settings(CLI::App& app, Command command) {
  for (const Group& group : groups()) {
    for (const Setting& setting : settings()) {
      if (!setting.is_for(command) || !setting.key.starts_with(group.prefix)) continue;
      const std::string_view former = setting.former.flag;
      const std::string flag =
          fmt::format("{}{}{}", setting.flag, former.empty() ? "" : ",", former);
      CLI::Option* option = setting.is_switch() ? app.add_flag(flag) : app.add_option(flag);
      option->description(setting_summary(setting))->group(std::string(group.title));
      option->type_name(std::string(setting.value_name));
    }
  }
  const auto add = [&](const std::string& flag, const char* value, const char* help) {
    CLI::Option* option = *value == '\0' ? app.add_flag(flag) : app.add_option(flag);
    return option->type_name(value)->description(help)->group("configuration");
  };
  add(kConfigFile, "FILE", "JSON with comments; flags override it (docs/guide/configuration.md)");
  if (takes_train_settings(command)) {
    add(kDeepSpeedFile, "FILE",
        "settings of a DeepSpeed configuration; flags override them (docs/guide/habits.md)");
    add(kMatch, "RUN|FILE",
        "choose the sizes of the model, except those given as flags, so that it is as large as the "
        "model of this run or configuration file (docs/guide/families.md)");
    add(kMatchBy, "parameters|flops",
        "what --match makes equal within 2%: the number of parameters, or FLOPs per token "
        "(default: parameters)");
  }
  add(kSet, "KEY=VALUE", "any setting by its key, for example model.width=64");
  if (takes_train_settings(command)) {
    add("-q," + std::string(kQuiet), "", "print only warnings, errors and the closing summary");
    add("-v," + std::string(kVerbose), "", "print all details of the start");
  }
  add(kPrintConfig, "", "print the resolved settings as JSON and exit");
}

CommandLine parsed_settings(const CLI::App& app, Command command) {
  CommandLine result;
  result.command = command;
  std::map<const CLI::Option*, std::size_t> taken;
  for (const CLI::Option* option : app.parse_order()) {
    const std::string& text = option->results()[taken[option]++];
    require_expanded(*option, text);
    add_option(option->get_name(), text, result);
  }
  const auto is_on = [&](const char* flag) {
    const CLI::Option* option = app.get_option_no_throw(flag);
    return option != nullptr && option->count() > 0 && option->as<bool>();
  };
  result.print_config = is_on(kPrintConfig);
  result.quiet = is_on(kQuiet);
  result.verbose = is_on(kVerbose);
  if (result.quiet && result.verbose) {
    fail(ErrorKind::usage, "{} and {} exclude each other: omit one of them", kQuiet, kVerbose);
  }
  if (result.match_by && result.match.empty()) {
    fail(ErrorKind::usage, "{} {} needs {}: name the run or configuration file to match", kMatchBy,
         *result.match_by, kMatch);
  }
  if (result.gives("train.steps") && result.gives("train.epochs")) {
    fail(ErrorKind::usage, "--steps and --epochs exclude each other: omit one of them");
  }
  note_repeated_flags(result);
  return result;
}

LoadedSettings load(const CommandLine& command_line, const Config& base) {
  LoadedSettings loaded{.config = base};
  if (!command_line.config_file.empty()) {
    apply_file(command_line.config_file, command_line.command, loaded);
    reset_unused(command_line.command, loaded.config);
  }
  const std::span all(command_line.assignments);
  const std::size_t num_deepspeed_assignments = command_line.num_deepspeed_assignments;
  apply_layer(all.first(num_deepspeed_assignments), loaded);
  apply_layer(all.subspan(num_deepspeed_assignments), loaded);
  return loaded;
}

}  // namespace dtrain::config
