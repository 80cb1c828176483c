// dtrain completion: a script with which a shell completes the flags of dtrain and dtrun.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/config/help.h"
#include "dtrain/config/schema.h"
#include "fitted_text.h"
#include "help.h"

namespace dtrain::app {
namespace {

using base::ErrorKind;
using base::fail;

// Both shells run it: zsh through its bashcompinit. @...@ is filled in below.
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
      checkpoint) values="list inspect verify diff export import" ;;
      data) values="prepare tokenizer baseline info" ;;
      completion) values="bash zsh" ;;
      help) values="@commands@ @settings@" ;;
    esac
  fi
  case "$command" in
    checkpoint|data) command="$command ${COMP_WORDS[2]}" ;;
  esac
  if [ "$COMP_CWORD" = 3 ] && [ "$command" = "data tokenizer" ]; then values="train"; fi
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

constexpr std::string_view kCommands =
    "train data generate evaluate verify checkpoint doctor plan schedule report completion "
    "settings help";

// Flags of commands that take no settings, or others beside them.
struct OtherFlags {
  std::string_view command;
  std::string_view flags;
};
constexpr OtherFlags kOtherFlags[] = {
    {"data prepare", "--output --tokenizer --field --dataset --vocab --threads --overwrite --help"},
    {"data tokenizer", "--output --vocab-size --type --field --dataset --overwrite --help"},
    {"report", "--output --csv --overwrite --help"},
    {"schedule", "--schedule-pp --pp --microbatches --help"},
    {"checkpoint list", "--help"},
    {"checkpoint inspect", "--help"},
    {"checkpoint verify", "--help"},
    {"checkpoint diff", "--help"},
};

// Words of these commands' flags.
struct OtherWords {
  std::string_view flag;
  std::string_view words;
};
constexpr OtherWords kOtherWords[] = {
    {"--dataset", "wikitext"},
    {"--type", "bpe unigram"},
    {"--device", "auto cpu cuda"},
    {"--offload", "none optimizer all disk:"},
};

std::string filled(std::string text, std::string_view name, std::string_view value) {
  for (std::size_t at = text.find(name); at != text.npos; at = text.find(name, at + value.size())) {
    text.replace(at, name.size(), value);
  }
  return text;
}

std::string flags_of(config::Command command) {
  std::string flags = "--config --set --print-config --help";
  const auto train = static_cast<unsigned>(config::Command::train);
  if ((static_cast<unsigned>(command) & train) != 0) flags += " --deepspeed-config --quiet";
  for (const config::Setting& setting : config::settings()) {
    if (setting.is_for(command) && !setting.is_word()) flags += fmt::format(" {}", setting.flag);
  }
  return flags;
}

std::string flag_cases() {
  std::string text;
  const auto add = [&](std::string_view command, std::string_view flags) {
    text += fmt::format("    \"{}\") flags=\"{}\" ;;\n", command, flags);
  };
  for (const config::Command command : config::kCommands) {
    add(name_of(command), flags_of(command));
  }
  for (const std::string_view command : {"doctor", "data baseline"}) {
    add(command, flags_of(config::Command::train));
  }
  for (const OtherFlags& other : kOtherFlags) add(other.command, other.flags);
  return text;
}

// "none every: auto" of "none|every:K|auto": placeholders are upper-case.
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

std::string value_cases() {
  std::string text;
  const auto add = [&](std::string_view flag, std::string_view words, bool has_files) {
    text += fmt::format("    {}) values=\"{}\"{} ;;\n", flag, words, has_files ? " files=yes" : "");
  };
  std::string keys;
  for (const config::Setting& setting : config::settings()) {
    std::string words;
    for (const config::Choice& choice : setting.choices) {
      if (choice.works()) words += fmt::format("{}{}", words.empty() ? "" : " ", choice.name);
    }
    if (setting.choices.empty() && setting.value_name.find('|') != std::string_view::npos) {
      words = words_in(setting.value_name);
    }
    if (setting.is_word()) continue;
    keys += fmt::format("{}{}=", keys.empty() ? "" : " ", setting.key);
    const bool has_files = setting.value_name.find("PATH") != std::string_view::npos;
    if (!words.empty()) add(setting.flag, words, has_files);
  }
  for (const OtherWords& other : kOtherWords) add(other.flag, other.words, /*has_files=*/false);
  add("--set", keys, /*has_files=*/false);
  return text;
}

// Names of settings that `dtrain help` explains.
std::string setting_words() {
  std::string words;
  for (const std::string_view name : config::setting_names()) {
    words += fmt::format("{}{}", words.empty() ? "" : " ", name);
  }
  return words;
}

std::string script() {
  std::string names(kCommands);
  std::replace(names.begin(), names.end(), ' ', '|');
  std::string text = filled(std::string(kScript.substr(1)), "@names@", names);
  text = filled(std::move(text), "@commands@", kCommands);
  text = filled(std::move(text), "@settings@", setting_words());
  text = filled(std::move(text), "@flags@", flag_cases());
  return filled(std::move(text), "@values@", value_cases());
}

}  // namespace

int run_completion(const Arguments& arguments) {
  const std::string shell = arguments.empty() ? "" : arguments[0];
  if (is_help(shell)) {
    print_help(completion_help());
    return 0;
  }
  constexpr std::string_view kShells[] = {"bash", "zsh"};
  if (arguments.size() != 1 || std::ranges::find(kShells, shell) == std::end(kShells)) {
    fail(ErrorKind::usage, "dtrain completion takes a shell, bash or zsh; found {}{}",
         shell.empty() ? "none" : fmt::format("\"{}\"", fmt::join(arguments, " ")),
         base::did_you_mean(base::nearest(shell, kShells)));
  }
  const bool is_zsh = shell == "zsh";
  print(std::string(is_zsh ? kForZsh : "") + script());
  return 0;
}

}  // namespace dtrain::app
