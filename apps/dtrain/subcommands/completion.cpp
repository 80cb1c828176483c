// dtrain completion: prints a script that completes flags of dtrain and dtrun in bash or zsh.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "dtrain/base/error.h"
#include "dtrain/base/host/arguments.h"
#include "dtrain/config/schema/schema.h"
#include "tool.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// The script for both shells; zsh runs it through bashcompinit. filled() replaces @...@.
constexpr std::string_view kScript = R"~(
# Completes a path. Names may have spaces, so each line is one.
_dtrain_files() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -f -- "$1"))
}

# Completes the arguments of dtrain.
_dtrain_words() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=train flags="" values="" files=""
  if [ "$before" = "=" ]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi
  if [ "$word" = "=" ]; then before=${COMP_WORDS[COMP_CWORD-1]}; word=""; fi
  case "${COMP_WORDS[1]}" in
    @names@) command=${COMP_WORDS[1]} ;;
  esac
  if [ "$COMP_CWORD" = 2 ]; then
    case "$command" in
@tools@      completion) values="bash zsh" ;;
      help) values="@commands@ @settings@" ;;
    esac
  fi
  case "$command" in
    checkpoint|data) command="$command ${COMP_WORDS[2]}" ;;
  esac
  if [ "$command" = "data tokenizer" ]; then
    if [ "$COMP_CWORD" = 3 ]; then values="train"; fi
    command="$command ${COMP_WORDS[3]}"
  fi
  case "$command" in
@flags@  esac
  case "$before" in
@values@  esac
  if [ -n "$values" ] && [ "${word#-}" = "$word" ]; then
    COMPREPLY=()
    if [ -n "$files" ]; then _dtrain_files "$word"; fi
    COMPREPLY+=($(compgen -W "$values" -- "$word"))
    case "${COMPREPLY[0]}" in
      *[=:]) compopt -o nospace 2> /dev/null ;;
    esac
  elif [ "${word#-}" != "$word" ]; then
    COMPREPLY=($(compgen -W "$flags" -- "$word"))
  elif [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "@commands@" -- "$word"))
  else
    _dtrain_files "$word"
  fi
}

# Completes the arguments of dtrun, whose program begins after "--".
_dtrun_words() {
  local place=1 word=${COMP_WORDS[COMP_CWORD]}
  while [ "$place" -lt "$COMP_CWORD" ] && [ "${COMP_WORDS[$place]}" != "--" ]; do place=$((place + 1)); done
  if [ "$place" -lt "$COMP_CWORD" ] && [ "$((place + 1))" -lt "$COMP_CWORD" ]; then
    COMP_WORDS=("${COMP_WORDS[@]:$((place + 1))}")
    COMP_CWORD=$((COMP_CWORD - place - 1))
    case "${COMP_WORDS[0]}" in
      dtrain|*/dtrain) _dtrain_words; return ;;
    esac
  elif [ "${word#-}" != "$word" ]; then
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" --help | grep -o -e '--[a-z][a-z-]*')" -- "$word"))
    return
  fi
  _dtrain_files "$word"
}

complete -o filenames -F _dtrain_words dtrain
complete -o filenames -F _dtrun_words dtrun
)~";

constexpr std::string_view kForZsh =
    "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i; }\n"
    "autoload -Uz bashcompinit && bashcompinit\n";

std::string filled(std::string text, std::string_view name, std::string_view value) {
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + value.size())) {
    text.replace(at, name.size(), value);
  }
  return text;
}

std::string command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : base::subcommands_of(app)) names.push_back(each->get_name());
  return fmt::format("{}", fmt::join(names, " "));
}

// Shell cases that list the nested subcommands of each subcommand.
std::string tool_cases(const CLI::App& dtrain) {
  std::string text;
  for (const CLI::App* each : base::subcommands_of(dtrain)) {
    const std::string tools = command_names(*each);
    if (tools.empty()) continue;
    text += fmt::format("      {}) values=\"{}\" ;;\n", each->get_name(), tools);
  }
  return text;
}

// Shell cases that list the flags of each subcommand.
std::string flag_cases(const CLI::App& app) {
  constexpr std::size_t kProgram = std::string_view("dtrain ").size();
  std::string text;
  for (const CLI::App* each : base::subcommands_of(app)) {
    text += fmt::format("    \"{}\") flags=\"{}\" ;;\n", base::command_path(*each).substr(kProgram),
                        fmt::join(base::flags_of(*each), " "));
    text += flag_cases(*each);
  }
  return text;
}

// The fixed words of a value name: "none every: auto" for "none|every:K|auto". Placeholders are in
// upper case.
std::string words_in(std::string_view value_name) {
  std::string words;
  for (std::string_view rest = value_name; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('|'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::string_view word = part.substr(0, std::min(part.find(':'), part.size() - 1) + 1);
    if (word.empty() || std::isupper(static_cast<unsigned char>(word[0])) != 0) continue;
    words += fmt::format("{}{}", words.empty() ? "" : " ", word);
  }
  return words;
}

// Adds the words that each flag accepts, from the first subcommand with that flag. Existing entries
// of `cases` stay.
void add_value_cases(const CLI::App& app, std::map<std::string, std::string>& cases) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string value = option->get_type_name();
    const std::string words = words_in(value);
    if (option->get_positional() || words.empty()) continue;
    const bool has_files = value.find("PATH") != std::string::npos;
    cases.try_emplace(option->get_name(),
                      fmt::format("\"{}\"{}", words, has_files ? " files=yes" : ""));
  }
  for (const CLI::App* each : base::subcommands_of(app)) add_value_cases(*each, cases);
}

std::string value_cases(const CLI::App& dtrain) {
  std::map<std::string, std::string> cases;
  std::vector<std::string> keys;
  for (const config::Setting& setting : config::settings()) {
    std::vector<std::string_view> words;
    for (const config::Choice& choice : setting.allowed.choices) words.push_back(choice.name);
    if (!words.empty()) {
      // If two settings share a flag, the first one belongs to train.
      cases.try_emplace(std::string(setting.flag), fmt::format("\"{}\"", fmt::join(words, " ")));
    }
    if (!setting.is_positional()) keys.push_back(fmt::format("{}=", setting.key));
  }
  cases["--set"] = fmt::format("\"{}\"", fmt::join(keys, " "));
  add_value_cases(dtrain, cases);
  std::string text;
  for (const auto& [flag, values] : cases)
    text += fmt::format("    {}) values={} ;;\n", flag, values);
  return text;
}

// The names of settings that `dtrain help` accepts.
std::string setting_words(const CLI::App& dtrain) {
  std::string words;
  for (const std::string& flag : base::flags_of(*dtrain.get_subcommand("train"))) {
    words += flag.substr(2) + ' ';
  }
  for (const config::Setting& setting : config::settings())
    words += fmt::format("{} ", setting.key);
  return words;
}

std::string script(const CLI::App& dtrain) {
  const std::string commands = command_names(dtrain);
  std::string names = commands;
  std::ranges::replace(names, ' ', '|');
  std::string text = filled(std::string(kScript.substr(1)), "@names@", names);
  text = filled(std::move(text), "@commands@", commands);
  text = filled(std::move(text), "@settings@", setting_words(dtrain));
  text = filled(std::move(text), "@tools@", tool_cases(dtrain));
  text = filled(std::move(text), "@flags@", flag_cases(dtrain));
  return filled(std::move(text), "@values@", value_cases(dtrain));
}

}  // namespace

void add_completion(CLI::App& parent, Action& action) {
  CLI::App* app = parent.add_subcommand("completion", "print a completion script for bash or zsh");
  const auto shell = std::make_shared<std::string>();
  app->add_option("SHELL", *shell, "bash or zsh")->required();
  app->footer(
      "The script completes subcommands, flags and their values, for dtrain and, after --, for "
      "dtrain under dtrun:\n\n"
      "  source <(dtrain completion bash)     # in ~/.bashrc\n"
      "  source <(dtrain completion zsh)      # in ~/.zshrc");
  app->callback([&parent, &action, shell] {
    action = [&parent, shell] {
      if (*shell != "bash" && *shell != "zsh") {
        fail(ErrorKind::usage, "dtrain completion needs a shell, bash or zsh; found \"{}\"{}",
             *shell, base::nearest_advice(*shell, {"bash", "zsh"}));
      }
      print(std::string(*shell == "zsh" ? kForZsh : "") + script(parent));
      return 0;
    };
  });
}

}  // namespace dtrain::app
