#include "dtrain/config/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/config/assign.h"
#include "dtrain/config/deepspeed_config.h"
#include "dtrain/config/file.h"
#include "dtrain/config/foreign_names.h"
#include "dtrain/config/nearest_key.h"
#include "dtrain/config/rivals.h"
#include "dtrain/config/unknown_word.h"

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
    fail(ErrorKind::usage, "--set: unknown setting \"{}\"{}", key, advice_for_key(key, command));
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

// A script's variable that is not set must not mean that there is no file.
void add_file(CommandLine& result, CLI::App& app, const std::string& flag, std::string& path) {
  const auto take = [&result, &path, flag](const std::string& file) {
    if (file.empty()) fail(ErrorKind::usage, "{} is empty: name a file", flag);
    if (!path.empty() && path != file) {
      result.repeated.push_back(fmt::format(
          "{} {} replaces {} {}: a file takes others with \"extends\"", flag, file, flag, path));
    }
    path = file;
  };
  app.add_option_function<std::string>(flag, take)->trigger_on_parse();
}

// The form of an option's value: "auto|PATH|none".
std::string value_name_of(const std::string& flag, Command command) {
  if (flag == "--config" || flag == "--deepspeed-config") return "FILE";
  if (flag == "--set") return "KEY=VALUE";
  for (const Setting& setting : settings()) {
    if (setting.flag == flag && setting.is_for(command)) return std::string(setting.value_name);
  }
  return "VALUE";
}

// A shell leaves "~" in --run-dir=~/x as it is, and a folder of that name would be made.
void require_expanded(const std::string& flag, const std::string& value, Command command) {
  if (value != "~" && !value.starts_with("~/")) return;
  const std::string name = value_name_of(flag, command);
  const bool is_path =
      std::ranges::any_of(std::array{"FILE", "DIR", "PATH", "RUN", "FIXTURE"},
                          [&](const char* part) { return name.find(part) != std::string::npos; });
  if (!is_path) return;
  fail(ErrorKind::usage,
       "{}: found '{}', but shells replace ~ only at the beginning of a word without quotes; put a "
       "space in place of =, or give the full path",
       flag, value);
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

// "--flag=value" as the parser's words: it would take the word after "--flag=" for the value.
void add_with_equals(const CLI::Option& option, const std::string& word, std::size_t equals,
                     std::vector<std::string>& words) {
  const std::string flag = word.substr(0, equals);
  const std::string value = word.substr(equals + 1);
  if (takes_value(option)) {
    words.insert(words.end(), {flag, value});
  } else if (truth_in(value) == true) {
    words.push_back(flag);
  } else if (truth_in(value) == false) {
    // Turns off what a file turned on; --help is no setting.
    if (const Setting* setting = find_flag(flag)) {
      words.insert(words.end(), {"--set", fmt::format("{}=off", setting->key)});
    }
  } else {
    fail(ErrorKind::usage, "{}: found \"{}\", but it is a switch: give it without a value", flag,
         value);
  }
}

// Refuses "--resume --print-config", where the second flag would be taken for the first one's
// value. Negative numbers have one dash.
void require_value(Command command, const std::string& flag, const std::string* next) {
  const std::string value = value_name_of(flag, command);
  if (next == nullptr) fail(ErrorKind::usage, "{} needs a value: {}", flag, value);
  if (!next->starts_with("--")) return;
  fail(ErrorKind::usage,
       "{} needs a value: {}; found {} (a value that begins with -- is given as {}=VALUE)", flag,
       value, *next, flag);
}

// The arguments as the parser takes them, each flag with the value that follows it.
std::vector<std::string> checked_words(Command command, const CLI::App& app,
                                       const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string word = with_dashes(app, arguments[i]);
    const std::size_t equals = word.find('=');
    const CLI::Option* option =
        word.starts_with("--") ? app.get_option_no_throw(word.substr(0, equals)) : nullptr;
    if (option != nullptr && equals != word.npos) {
      require_expanded(word.substr(0, equals), word.substr(equals + 1), command);
      add_with_equals(*option, word, equals, words);
      continue;
    }
    words.push_back(word);
    if (option == nullptr || !takes_value(*option)) continue;
    const bool has_next = i + 1 < arguments.size();
    require_value(command, word, has_next ? &arguments[i + 1] : nullptr);
    words.push_back(arguments[++i]);
    require_expanded(word, words.back(), command);
  }
  return words;
}

// "--a; --b: use --c": the unknown flags after the first one.
std::string other_unknown_flags(const std::vector<std::string>& rest, Command command) {
  std::string text;
  for (auto word = rest.begin() + 1; word < rest.end(); ++word) {
    if (!word->starts_with("--")) continue;
    const std::string flag = word->substr(0, word->find('='));
    text += fmt::format("{}{}{}", text.empty() ? "" : "; ", flag,
                        foreign_advice(flag, NameKind::flag, command));
  }
  return text;
}

[[noreturn]] void refuse_rest(const CLI::App& app, Command command,
                              const std::vector<std::string>& arguments) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_name());
  const std::vector<std::string> rest = app.remaining();
  try {
    refuse_word(
        rest.front(),
        {.command = command, .arguments = arguments, .flags = {names.begin(), names.end()}});
  } catch (const base::Error& error) {
    const std::string others = other_unknown_flags(rest, command);
    if (others.empty()) throw;
    fail(error.kind(), "{}; also unknown: {}", error.what(), others);
  }
}

// Before the flags, which win over them.
void add_deepspeed(CommandLine& result) {
  if (result.deepspeed_file.empty()) return;
  DeepSpeedConfig found = read_deepspeed_config(result.deepspeed_file);
  result.deepspeed_unused = std::move(found.unused);
  result.num_of_deepspeed = found.assignments.size();
  found.assignments.insert(found.assignments.end(), result.assignments.begin(),
                           result.assignments.end());
  result.assignments = std::move(found.assignments);
}

// Which of them would win is nothing that anybody should have to know.
void refuse_steps_beside_epochs(const std::vector<Assignment>& flags) {
  const auto given = [&](std::string_view key) {
    return std::ranges::any_of(flags,
                               [&](const Assignment& flag) { return flag.setting->key == key; });
  };
  if (!given("train.steps") || !given("train.epochs")) return;
  fail(ErrorKind::usage, "--steps and --epochs both say how long to train: give one of them");
}

// Which of two files is meant is not known: users of other trainers mix them in this way.
[[noreturn]] void refuse_two_data(const std::vector<std::string>& files) {
  fail(ErrorKind::usage,
       "--data is given {} times ({}): give one file, or mix several: --data "
       "FILE:WEIGHT,FILE:WEIGHT",
       files.size(), fmt::join(files, ", "));
}

// "--lr is given 2 times (0.1, 0.2): the last one is taken", for each flag given more than once.
void note_repeated_flags(CommandLine& result) {
  std::map<const Setting*, std::vector<std::string>> values;
  for (const Assignment& flag : result.assignments) {
    values[flag.setting].push_back(flag.text);
  }
  for (const auto& [setting, given] : values) {
    if (given.size() < 2) continue;
    const bool is_same = std::ranges::count(given, given.front()) == std::ssize(given);
    if (setting->key == "data.train" && !is_same) refuse_two_data(given);
    result.repeated.push_back(fmt::format("{} is given {} times ({}): the last one is taken",
                                          setting->flag, given.size(), fmt::join(given, ", ")));
  }
}

// A layout that a file asks for must not be checked where there is none.
void forget_unused(Command command, Config& config) {
  const Config plain;
  for (const Setting& setting : settings()) {
    if (!setting.is_for(command)) {
      assign_json(setting, value_json(setting, plain), setting.key, config);
    }
  }
}

// Resets settings of lower layers that this layer's settings exclude.
void apply_layer(std::span<const Assignment> layer, Loaded& loaded) {
  const Config below = loaded.config;
  std::vector<const Setting*> given;
  for (const Assignment& assignment : layer) {
    assign_text(*assignment.setting, assignment.text, assignment.origin, loaded.config);
    given.push_back(assignment.setting);
  }
  Layer rivals(below, given, loaded.config);
  drop_rivals(rivals);
  for (std::string& line : rivals.replaced()) loaded.replaced.push_back(std::move(line));
  loaded.given.insert(loaded.given.end(), given.begin(), given.end());
}

}  // namespace

std::string with_dashes(const CLI::App& app, const std::string& word) {
  const std::size_t end = std::min(word.find('='), word.size());
  if (!word.starts_with("--") || word.substr(0, end).find('_') == word.npos) return word;
  std::string dashed = word;
  std::replace(dashed.begin(), dashed.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  return app.get_option_no_throw(dashed.substr(0, end)) == nullptr ? word : dashed;
}

CommandLine parse_command_line(Command command, const std::vector<std::string>& arguments) {
  CommandLine result;
  result.command = command;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_flag("-h,--help", result.help);
  app.add_flag("--print-config", result.print_config);
  add_file(result, app, "--config", result.config_file);
  const bool trains = (static_cast<unsigned>(command) & static_cast<unsigned>(Command::train)) != 0;
  if (trains) {
    add_file(result, app, "--deepspeed-config", result.deepspeed_file);
    app.add_flag("-q,--quiet", result.quiet);
  }
  add_settings(result, app);
  const std::vector<std::string> words = checked_words(command, app, arguments);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::Error& error) {
    fail(ErrorKind::usage, "{}", error.what());
  }
  if (!app.remaining().empty() && !result.help) refuse_rest(app, command, arguments);
  refuse_steps_beside_epochs(result.assignments);
  if (!result.help) note_repeated_flags(result);
  add_deepspeed(result);
  return result;
}

Loaded load(const CommandLine& command_line, const Config& base) {
  Loaded loaded;
  loaded.config = base;
  if (!command_line.config_file.empty()) {
    FileSettings file = apply_file(command_line.config_file, command_line.command, loaded.config);
    loaded.unused = std::move(file.unused);
    loaded.given = std::move(file.given);
    loaded.replaced = std::move(file.replaced);
    forget_unused(command_line.command, loaded.config);
  }
  const std::span all(command_line.assignments);
  const std::size_t num_of_deepspeed = command_line.num_of_deepspeed;
  apply_layer(all.first(num_of_deepspeed), loaded);
  apply_layer(all.subspan(num_of_deepspeed), loaded);
  return loaded;
}

}  // namespace dtrain::config
