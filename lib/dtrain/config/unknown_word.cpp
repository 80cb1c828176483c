#include "dtrain/config/unknown_word.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/config/foreign_names.h"

namespace dtrain::config {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// En dash, em dash and minus sign, which editors and web pages write for "--".
constexpr std::string_view kOtherDashes[] = {"\xe2\x80\x93", "\xe2\x80\x94", "\xe2\x88\x92"};

// Advice on a word that begins with such a dash; empty where it does not.
std::string advice_for_dashes(std::string_view word) {
  const std::size_t whole = word.size();
  for (bool found = true; found;) {
    found = false;
    for (const std::string_view dash : kOtherDashes) {
      if (!word.starts_with(dash)) continue;
      word.remove_prefix(dash.size());
      found = true;
    }
  }
  if (word.size() == whole) return {};
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));  // "\u2014-lr"
  return fmt::format(
      "; it begins with a typographic dash, as text editors make of two hyphens: type --{}", word);
}

// Subcommands that have the flag.
std::string commands_with(std::string_view flag) {
  std::string names;
  for (const Command command : kCommands) {
    const bool has = std::ranges::any_of(settings(), [&](const Setting& setting) {
      return setting.flag == flag && setting.is_of(command);
    });
    if (has) names += fmt::format("{}dtrain {}", names.empty() ? "" : ", ", name_of(command));
  }
  return names;
}

// "a.txt b.txt", as a shell writes for *.txt.
bool follows_data(const std::string& word, const std::vector<std::string>& arguments) {
  const auto place = std::ranges::find(arguments, word);
  return place - arguments.begin() >= 2 && *(place - 2) == "--data";
}

[[noreturn]] void refuse_plain_word(const std::string& word, const KnownFlags& known) {
  const std::string_view name = name_of(known.command);
  if (const std::string advice = advice_for_dashes(word); !advice.empty()) {
    fail(ErrorKind::usage, "dtrain {}: unexpected word \"{}\"{}", name, word, advice);
  }
  const auto place = std::ranges::find(known.arguments, word);
  if (place != known.arguments.begin() && place != known.arguments.end()) {
    std::string flag = *(place - 1);
    std::ranges::replace(flag, '_', '-');
    const Setting* before = find_flag(flag);
    if (before != nullptr && before->is_switch()) {
      fail(ErrorKind::usage, "{} takes no value, but \"{}\" follows it: leave it out", before->flag,
           word);
    }
  }
  if (follows_data(word, known.arguments)) {
    fail(ErrorKind::usage,
         "--data takes one file, but \"{}\" follows it: make one of several with dtrain data "
         "prepare FILE... --output FILE.dtok",
         word);
  }
  const std::string advice = advice_for_word(word, known.command);
  fail(ErrorKind::usage, "dtrain {}: unexpected word \"{}\"{}", name, word,
       advice.empty() ? "; settings are given as --NAME VALUE" : advice);
}

}  // namespace

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
  if (generates && fs::is_directory(word, error)) {
    return fmt::format("; it is a folder: give it as --from {}", word);
  }
  if (!fs::is_regular_file(word, error)) {
    return generates ? "; a text is given as --prompt TEXT" : "";
  }
  const std::string_view flag = word.ends_with(".json") ? "--config"
                                : generates             ? "--from or --prompt-file"
                                                        : "--data";
  return fmt::format("; it is a file: give it as {} {}", flag, word);
}

void refuse_word(const std::string& word, const KnownFlags& known) {
  if (!word.starts_with('-')) refuse_plain_word(word, known);
  const std::string_view name = name_of(known.command);
  const std::string flag = word.substr(0, word.find('='));
  if (const Setting* setting = find_flag(flag)) {
    const Setting* meant = find_key(key_meant_in(known.command, setting->key));
    if (meant != setting && meant->is_for(known.command)) {
      fail(ErrorKind::usage, "{} is not a flag of dtrain {}: use {}", flag, name, meant->flag);
    }
    fail(ErrorKind::usage, "{} (setting {}) is not a flag of dtrain {}, but of {}", flag,
         setting->key, name, commands_with(flag));
  }
  const std::string key = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  if (const Setting* setting = find_key(key); setting != nullptr && !setting->is_word()) {
    fail(ErrorKind::usage, "unknown flag {}: it is the key of {} in files; --set {}=VALUE sets it",
         flag, setting->flag, key);
  }
  std::string advice = foreign_advice(flag, NameKind::flag, known.command);
  if (advice.empty()) advice = base::did_you_mean(base::nearest(flag, known.flags));
  if (const std::size_t dot = flag.rfind('.'); advice.empty() && dot != flag.npos) {
    advice = base::did_you_mean(base::nearest(flag.substr(dot + 1), known.flags));
  }
  fail(ErrorKind::usage, "unknown flag {}{}", flag,
       advice.empty() ? fmt::format("; dtrain {} --help lists them", name) : advice);
}

}  // namespace dtrain::config
