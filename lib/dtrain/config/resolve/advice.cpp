#include "dtrain/config/resolve/advice.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/base/text/nearest.h"
#include "dtrain/config/family.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

std::string_view last_part(std::string_view key) { return key.substr(key.rfind('.') + 1); }

bool has_word(std::string_view words, std::string_view word) {
  return fmt::format(" {} ", words).find(fmt::format(" {} ", word)) != std::string::npos;
}

// name: normalized.
const ForeignFlags* row_of(std::string_view name) {
  const auto find = [&](std::span<const ForeignFlags> rows) -> const ForeignFlags* {
    const auto row = std::ranges::find_if(
        rows, [&](const ForeignFlags& each) { return has_word(each.names, name); });
    return row == rows.end() ? nullptr : &*row;
  };
  const ForeignFlags* row = find(foreign_flags());
  for (const Family* family : families()) {
    if (row == nullptr) row = find(family->foreign_flags);
  }
  return row;
}

bool reads_model(Command command) {
  return command == Command::generate || command == Command::evaluate;
}

// The setting of `command` that corresponds to another command's setting: training settings that
// name a run or weights correspond to --from of generate and evaluate. Otherwise `key` itself.
std::string_view equivalent_key(Command command, std::string_view key) {
  const bool is_of_model =
      has_word("model.name checkpoint.resume checkpoint.init_from run.dir", key);
  return is_of_model && reads_model(command) ? "generate.from" : key;
}

// dtrain plan starts no ranks, so these names correspond to its --ranks.
constexpr std::string_view kCountsOfRanks =
    "n np gpus ngpus n-gpus nprocs num-gpus num-processes nproc ntasks num-ranks world-size";

// ": use --layers" for an unknown flag, ": use model.layers" for an unknown key, followed by the
// row's note. Empty for names that no known program uses, and for settings that `command` lacks.
enum class NameKind { flag, key };
std::string foreign_advice(std::string_view given, NameKind kind, Command command) {
  const ForeignFlags* foreign = find_foreign_flag(given);
  if (foreign == nullptr) return {};
  const std::string normal = normalized_name(given);
  const std::string_view name = last_part(normal);
  if (command == Command::plan && has_word(kCountsOfRanks, name)) return ": use --ranks";
  if (command == Command::generate && name == "n") {  // a number of ranks for other commands
    return ": use --samples for several texts, or --max-tokens for their length";
  }
  if (foreign->key.empty()) return fmt::format(": {}", foreign->note);
  if (command == Command::generate && (name.starts_with("out") || name.starts_with("save"))) {
    return ": the text is written to standard output (> FILE); --from RUN names the model's run";
  }
  const Setting* setting = find_key(equivalent_key(command, foreign->key));
  if (setting == nullptr || !setting->is_for(command)) return {};
  const bool has_note = !foreign->note.empty() && setting->key == foreign->key;
  return fmt::format(": use {}{}", kind == NameKind::flag ? setting->flag : setting->key,
                     has_note ? fmt::format(" ({})", foreign->note) : "");
}

// Advice for a word that begins with an en dash, em dash or minus sign, which editors and web pages
// substitute for "--"; otherwise empty.
std::string advice_for_dashes(std::string_view word) {
  std::string_view name = word;
  for (const std::string_view dash : {"\xe2\x80\x93", "\xe2\x80\x94", "\xe2\x88\x92"}) {
    while (name.starts_with(dash)) name.remove_prefix(dash.size());
  }
  if (name.size() == word.size()) return {};
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));  // "\u2014-lr"
  return fmt::format(
      "; it begins with a typographic dash, which text editors substitute for two hyphens: type "
      "--{}",
      name);
}

// The subcommands that have the flag, separated by commas.
std::string commands_with(std::string_view flag) {
  std::string names;
  for (const Command command : kCommands) {
    const bool has = std::ranges::any_of(settings(), [&](const Setting& setting) {
      return setting.flag == flag && setting.belongs_to(command);
    });
    if (has) names += fmt::format("{}dtrain {}", names.empty() ? "" : ", ", name_of(command));
  }
  return names;
}

[[noreturn]] void reject_positional(const std::string& word, const std::string& path,
                                    Command command, const std::vector<std::string>& arguments) {
  if (const std::string advice = advice_for_dashes(word); !advice.empty()) {
    fail(ErrorKind::usage, "{}: unexpected word \"{}\"{}", path, word, advice);
  }
  const auto place = std::ranges::find(arguments, word);
  if (place != arguments.begin() && place != arguments.end()) {
    std::string flag = *(place - 1);
    std::ranges::replace(flag, '_', '-');
    const Setting* before = find_flag(flag);
    if (before != nullptr && before->is_switch()) {
      fail(ErrorKind::usage, "{} takes no value, but \"{}\" follows it: omit it", before->flag,
           word);
    }
  }
  // "a.txt b.txt", as a shell expands *.txt.
  std::error_code error;
  const bool is_folder = fs::is_directory(word, error);
  if (place - arguments.begin() >= 2 && *(place - 2) == "--data" && !is_folder) {
    fail(ErrorKind::usage,
         "--data takes one file, but \"{}\" follows it: join several with dtrain data prepare "
         "FILE... --output FILE.dtok",
         word);
  }
  const std::string advice = advice_for_word(word, command);
  fail(ErrorKind::usage, "{}: unexpected word \"{}\"{}", path, word,
       advice.empty() ? "; settings are given as --NAME VALUE" : advice);
}

[[noreturn]] void reject_flag(const std::string& flag, const CLI::App& app, Command command) {
  const std::string path = base::command_path(app);
  if (const Setting* setting = find_flag(flag)) {
    const Setting* meant = find_key(equivalent_key(command, setting->key));
    if (meant != setting && meant->is_for(command)) {
      fail(ErrorKind::usage, "{} is not a flag of {}: use {}", flag, path, meant->flag);
    }
    fail(ErrorKind::usage, "{} (setting {}) is not a flag of {}; it belongs to {}", flag,
         setting->key, path, commands_with(flag));
  }
  const std::string key = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  if (const Setting* setting = find_key(key); setting != nullptr && !setting->is_positional()) {
    fail(ErrorKind::usage,
         "unknown flag {}: it is the key of {} in configuration files; give {}, or --set {}=VALUE",
         flag, setting->flag, setting->flag, key);
  }
  const std::vector<std::string> known = base::flags_of(app);
  const bool lacks_dash = std::ranges::count(known, "-" + flag) > 0;
  std::string advice = lacks_dash ? "" : foreign_advice(flag, NameKind::flag, command);
  if (advice.empty()) advice = base::nearest_advice(flag, known);
  if (advice.empty() && flag.find('.') != flag.npos) {
    advice = base::nearest_advice(last_part(flag), known);
  }
  fail(ErrorKind::usage, "unknown flag {}{}", flag,
       advice.empty() ? fmt::format("; {} --help lists them", path) : advice);
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

}  // namespace

std::string normalized_name(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string normal;
  for (const char c : name) {
    normal += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

const ForeignFlags* find_foreign_flag(std::string_view name) {
  const std::string wanted = normalized_name(name);
  const ForeignFlags* row = row_of(wanted);
  // "training.max-steps": the group is also foreign.
  return row == nullptr ? row_of(last_part(wanted)) : row;
}

std::string_view nearest_key(std::string_view key) {
  std::vector<std::string_view> keys;
  std::vector<std::string_view> parts;
  for (const Setting& setting : settings()) {
    keys.push_back(setting.key);
    parts.push_back(last_part(setting.key));
  }
  if (const std::string_view whole = base::nearest(key, keys); !whole.empty()) return whole;
  // "eval.sequences" is nearest to report.eval_sequences as a whole; its last part is tried next.
  std::string_view part = base::nearest(key, parts);
  if (part.empty()) part = base::nearest(last_part(key), parts);
  if (part.empty()) return part;
  return keys[static_cast<std::size_t>(std::ranges::find(parts, part) - parts.begin())];
}

std::string advice_for_key(std::string_view key, Command command) {
  for (const Group& group : groups()) {
    if (group.prefix.substr(0, group.prefix.size() - 1) != key) continue;
    return fmt::format(", which is a group: write its settings as an object, {{\"{}\": {{...}}}}",
                       key);
  }
  std::string advice = foreign_advice(key, NameKind::key, command);
  return advice.empty() ? base::did_you_mean(nearest_key(key)) : advice;
}

std::string advice_for_word(const std::string& word, Command command) {
  if (std::string advice = advice_for_dashes(word); !advice.empty()) return advice;
  const std::string key = word.substr(0, word.find('='));
  if (key != word && find_key(key) != nullptr) return fmt::format(": give it as --set {}", word);
  if (key != word && find_flag("--" + key) != nullptr)
    return fmt::format(": give it as --{}", word);
  std::error_code error;
  const bool generates = command == Command::generate;
  if (command == Command::verify && fs::is_directory(word, error)) {
    return fmt::format("; it is a folder: dtrain checkpoint verify {} checks a run's checkpoints",
                       word);
  }
  if (fs::is_directory(word, error)) {
    return fmt::format("; it is a folder: give it as {} {}",
                       reads_model(command) ? "--from" : "--run-dir", word);
  }
  if (!fs::is_regular_file(word, error)) {
    return generates ? "; give a prompt as --prompt TEXT" : "";
  }
  const std::string_view flag = word.ends_with(".json") ? "--config"
                                : generates             ? "--from or --prompt-file"
                                : reads_model(command)  ? "--from or --data"
                                                        : "--data";
  return fmt::format("; it is a file: give it as {} {}", flag, word);
}

void reject_unknown_arguments(const CLI::App& app, Command command,
                              const std::vector<std::string>& arguments) {
  std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return;
  std::ranges::transform(rest, rest.begin(), base::as_typed);
  const std::string& word = rest.front();
  const std::string others = other_unknown_flags(rest, command);
  try {
    if (!word.starts_with('-')) {
      reject_positional(word, base::command_path(app), command, arguments);
    }
    reject_flag(word.substr(0, word.find('=')), app, command);
  } catch (const base::Error& error) {
    if (others.empty()) throw;
    fail(error.kind(), "{}; also unknown: {}", error.what(), others);
  }
}

}  // namespace dtrain::config
