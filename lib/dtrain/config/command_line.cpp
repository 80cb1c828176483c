#include "dtrain/config/command_line.h"

#include <CLI/CLI.hpp>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/file.h"
#include "dtrain/config/nearest_key.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

Assignment parse_set(Command command, const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) {
    fail(ErrorKind::usage, "--set: found \"{}\", but it must be KEY=VALUE, as in model.width=64",
         text);
  }
  const std::string key = text.substr(0, equals);
  const Setting* setting = find_key(key);
  if (setting == nullptr) {
    fail(ErrorKind::usage, "--set: unknown setting \"{}\"{}", key,
         base::did_you_mean(nearest_key(key)));
  }
  if (!setting->is_for(command)) {
    fail(ErrorKind::usage, "--set: {} is not a setting of dtrain {}", key, name_of(command));
  }
  return {setting, text.substr(equals + 1), "--set " + key};
}

// Assignments are kept in the order of the command line, which needs each option's callback to run
// when it is met.
void add_settings(CommandLine& result, CLI::App& app) {
  for (const Setting& setting : settings()) {
    if (!setting.is_for(result.command)) continue;
    const std::string flag(setting.flag);
    const auto keep = [&result, &setting, flag](const std::string& text) {
      result.assignments.push_back({&setting, text, flag});
    };
    if (setting.is_switch()) {
      app.add_flag_callback(flag, [keep] { keep("on"); })->trigger_on_parse();
    } else {
      app.add_option_function<std::string>(flag, keep)->trigger_on_parse();
    }
  }
  const Command command = result.command;
  app.add_option_function<std::string>("--set",
                                       [&result, command](const std::string& text) {
                                         result.assignments.push_back(parse_set(command, text));
                                       })
      ->trigger_on_parse();
}

[[noreturn]] void refuse_word(Command command, const std::string& word, const CLI::App& app) {
  const std::string_view name = name_of(command);
  if (!word.starts_with('-')) {
    fail(ErrorKind::usage, "dtrain {}: unexpected word \"{}\"; settings are given as --NAME VALUE",
         name, word);
  }
  const std::string flag = word.substr(0, word.find('='));
  if (const Setting* setting = find_flag(flag)) {
    fail(ErrorKind::usage, "{} (setting {}) is not a flag of dtrain {}", flag, setting->key, name);
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string suggestion = base::did_you_mean(base::nearest(flag, candidates));
  fail(ErrorKind::usage, "unknown flag {}{}", flag,
       suggestion.empty() ? fmt::format("; dtrain {} --help lists them", name) : suggestion);
}

}  // namespace

CommandLine parse_command_line(Command command, const std::vector<std::string>& arguments) {
  CommandLine result;
  result.command = command;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("-h,--help", result.help);
  app.add_flag("--print-config", result.print_config);
  app.add_option("--config", result.config_file);
  add_settings(result, app);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string_view message = error.what();  // "--steps: 1 required TEXT missing"
    fail(ErrorKind::usage, "{}: a value is missing", message.substr(0, message.find(':')));
  } catch (const CLI::Error& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
  if (const std::vector<std::string> rest = app.remaining(); !rest.empty() && !result.help) {
    refuse_word(command, rest.front(), app);
  }
  return result;
}

Loaded load(const CommandLine& command_line) {
  Loaded loaded;
  if (!command_line.config_file.empty()) {
    loaded.unused = apply_file(command_line.config_file, command_line.command, loaded.config);
  }
  for (const Assignment& assignment : command_line.assignments) {
    assign_text(*assignment.setting, assignment.text, assignment.origin, loaded.config);
  }
  return loaded;
}

}  // namespace dtrain::config
