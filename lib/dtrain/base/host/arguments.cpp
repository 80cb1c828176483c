#include "dtrain/base/host/arguments.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iterator>

#include "dtrain/base/error.h"
#include "dtrain/base/text/nearest.h"

namespace dtrain::base {
namespace {

constexpr std::size_t kTextColumn = 28;

// Prefix of words that CLI11 would parse as short flags.
constexpr std::string_view kWholeWord = "--=";

// The prefix of errors: the subcommand's name, if any.
std::string prefix_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? "" : command_path(app) + ": ";
}

// Returns the value of `flag` from the next word.
const std::string& following_value(const CLI::App& app, const CLI::Option& option,
                                   const std::string& flag, const std::string* next) {
  if (next != nullptr && !next->starts_with("--")) return *next;
  const std::string value = option.get_type_name();
  fail(ErrorKind::usage, "{}{} needs a value: {}{}", prefix_of(app), flag, value,
       next == nullptr
           ? ""
           : fmt::format("; found {} (a value that begins with -- is given as {}=VALUE)", *next,
                         flag));
}

constexpr std::string_view kSwitchValues[] = {"on",  "true",  "True",  "1", "yes",
                                              "off", "false", "False", "0", "no"};

// Formats a switch with `value`: empty, or "=off". CLI11 would take an empty value, e.g. from an
// unset shell variable, for "true".
std::string switch_word(const CLI::App& app, const CLI::Option& option, const std::string& flag,
                        const std::string& value) {
  if (value.empty()) return flag;
  const std::string text = value.substr(1);
  const bool is_known = std::ranges::find(kSwitchValues, text) != std::end(kSwitchValues);
  if (!is_known || option.get_disable_flag_override()) {
    fail(ErrorKind::usage, "{}{}: found \"{}\", but it is a switch: give it without a value",
         prefix_of(app), flag, text);
  }
  return option.get_name() + value;  // CLI11 reads "-v=off" as letters
}

// True for "-vocab", which no flags are: "-qv" is two switches, "-n3" a flag with its value, unless
// a whole flag has that name.
bool is_unknown_with_one_dash(const CLI::App& app, const std::string& word) {
  if (word.starts_with("--") || word.size() < 3) return false;
  const auto option_of = [&](const std::string& flag) {
    return app.get_option_no_throw(canonical_flag(flag));
  };
  const CLI::Option* first = option_of(word.substr(0, 2));
  if (first == nullptr) return false;  // CLI11 leaves it whole
  if (option_of("-" + word.substr(0, word.find('='))) != nullptr) return true;
  if (first->get_items_expected_min() > 0) return false;
  return !std::all_of(word.begin() + 1, word.end(), [&](char letter) {
    const CLI::Option* option = option_of({'-', letter});
    return option != nullptr && option->get_items_expected_min() == 0;
  });
}

// CLI11 ends a subcommand at "++" and drops the word.
void refuse_plus_signs(const CLI::App& app, const std::string& word) {
  if (word != "++" || app.get_parent() == nullptr) return;
  fail(ErrorKind::usage, "{}unexpected word \"++\"; to name a file ++, write ./++", prefix_of(app));
}

bool takes_words(const CLI::App& app) {
  return std::ranges::any_of(app.get_options(), &CLI::Option::get_positional);
}

// Moves the words at the ascending indices `plain` to the end.
void move_to_end(std::vector<std::string>& words, const std::vector<std::size_t>& plain) {
  std::ptrdiff_t num_moved = 0;
  for (const std::size_t index : plain) {
    const auto place = words.begin() + static_cast<std::ptrdiff_t>(index) - num_moved++;
    std::rotate(place, place + 1, words.end());
  }
}

// Rewrites the arguments for CLI11, which does not accept "_" for "-", takes whatever follows a
// flag or "--flag=" as its value, and leaves a subcommand at "--" once it has enough words.
std::vector<std::string> words_of(const CLI::App& root, const std::vector<std::string>& arguments) {
  const CLI::App* app = &root;
  std::vector<std::string> words;
  std::vector<std::size_t> plain;  // indices of the words that belong to no flag of `app`
  for (auto word = arguments.begin(); word != arguments.end(); ++word) {
    const bool is_flag = word->starts_with('-') && *word != "-";
    refuse_plus_signs(*app, *word);
    if (*word == "--" || (!is_flag && app->get_prefix_command())) {
      if (*word == "--" && takes_words(*app)) {
        words.push_back(*word++);
        move_to_end(words, plain);
      }
      words.insert(words.end(), word, arguments.end());
      break;
    }
    const auto subcommands = subcommands_of(*app);
    const auto named = std::ranges::find(subcommands, *word, &CLI::App::get_name);
    const std::size_t equals = std::min(word->find('='), word->size());
    const std::string flag = canonical_flag(word->substr(0, equals));
    const CLI::Option* option = is_flag ? app->get_option_no_throw(flag) : nullptr;
    if (named != subcommands.end()) {
      app = *named;
      plain.clear();
      words.push_back(*word);
    } else if (option == nullptr) {
      if (!is_flag) plain.push_back(words.size());
      const bool is_whole = is_flag && is_unknown_with_one_dash(*app, *word);
      words.push_back(is_whole ? std::string(kWholeWord) + *word : *word);
    } else if (option->get_items_expected_min() == 0) {
      words.push_back(switch_word(*app, *option, flag, word->substr(equals)));
    } else if (equals < word->size()) {
      words.insert(words.end(), {flag, word->substr(equals + 1)});
    } else {
      const std::string* next = word + 1 == arguments.end() ? nullptr : &*(word + 1);
      words.insert(words.end(), {flag, following_value(*app, *option, flag, next)});
      ++word;
    }
  }
  return words;
}

// "dtrain schedule --pp P --microbatches M [flags]"
std::string usage_of(const CLI::App& app) {
  std::string text = command_path(app);
  for (const CLI::Option* option : app.get_options()) {
    const bool is_word = option->get_positional();
    const bool is_list = is_word && option->get_items_expected_max() > 1;
    if (is_word) {
      text += fmt::format(" {}{}", option->get_name(), is_list ? "..." : "");
    } else if (option->get_required()) {
      text += fmt::format(" {} {}", option->get_name(), option->get_type_name());
    }
  }
  return text + (subcommands_of(app).empty() ? "" : " TOOL") + " [flags]\n";
}

}  // namespace

void set_up_parser(CLI::App& app) {
  app.set_help_flag("-h,--help", "print this and exit");
  app.allow_extras();
  app.require_subcommand(0, 1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->group("flags");
}

void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> words = words_of(app, arguments);
  std::ranges::reverse(words);  // as the parser takes them
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::Error& error) {
    const bool lacks_something = error.get_name() == "RequiredError";
    if (lacks_something && app.remaining_size(true) > 0) return;  // may be a mistyped name
    const CLI::App& chosen = chosen_command(app);
    fail(ErrorKind::usage, "{}{}; {} --help shows the flags", prefix_of(chosen), error.what(),
         command_path(chosen));
  }
}

std::string canonical_flag(std::string flag) {
  if (flag == "-np") return "--np";
  if (flag.starts_with("--")) std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string as_typed(const std::string& word) {
  return word.starts_with(kWholeWord) ? word.substr(kWholeWord.size()) : word;
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands(std::function<bool(const CLI::App*)>());
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    const bool is_hidden = option->get_group().empty();
    if (!option->get_positional() && !is_hidden) flags.push_back(option->get_name());
  }
  return flags;
}

std::string nearest_advice(std::string_view word, const std::vector<std::string>& names) {
  const std::vector<std::string_view> known(names.begin(), names.end());
  return did_you_mean(nearest(word, known));
}

const CLI::App& chosen_command(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : chosen_command(*chosen.front());
}

std::string command_path(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return parent == nullptr ? app.get_name() : command_path(*parent) + " " + app.get_name();
}

std::string wrapped(std::string_view text, std::size_t columns, std::size_t indent) {
  std::string result;
  while (!text.empty()) {
    std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t margin = std::max(indent, std::min(line.find_first_not_of(' '), line.size()));
    while (line.size() > columns) {
      std::size_t end = line.rfind(' ', columns);
      if (end == line.npos || end <= margin) end = line.find(' ', margin);
      if (end == line.npos) break;
      result += line.substr(0, end) + '\n';
      line.replace(0, end + 1, margin, ' ');
    }
    result += line + '\n';
  }
  return result;
}

std::string help_entry(std::string_view flag, std::string_view text, std::size_t columns) {
  if (text.empty()) return fmt::format("  {}\n", flag);
  std::string head = fmt::format("  {:<{}}", flag, kTextColumn - 3);
  head += head.size() < kTextColumn ? " " : "\n" + std::string(kTextColumn, ' ');
  return wrapped(head.append(text), columns, kTextColumn);
}

std::string help_entry(const CLI::Option& option, std::size_t columns) {
  std::string names;
  for (const std::string& name : option.get_snames()) names += fmt::format("-{}, ", name);
  names += option.get_name();
  if (option.get_items_expected_max() > 0 && !option.get_positional()) {
    names += ' ' + option.get_type_name();
  }
  return help_entry(names, option.get_description(), columns);
}

std::string subcommands_help(const CLI::App& app, std::size_t columns) {
  std::string text;
  for (const CLI::App* each : subcommands_of(app)) {
    text += help_entry(each->get_name(), each->get_description(), columns);
  }
  return text;
}

std::string flags_help(const CLI::App& app, std::size_t columns) {
  const CLI::Option* help = app.get_help_ptr();
  std::string text;
  bool has_help = false;
  for (const std::string& group : app.get_groups()) {
    const auto options = app.get_options(
        [&](const CLI::Option* option) { return option != help && option->get_group() == group; });
    if (options.empty() || group.empty()) continue;  // a group without a name is hidden
    text += (text.empty() ? "" : "\n") + group + '\n';
    for (const CLI::Option* option : options) text += help_entry(*option, columns);
    if (help->get_group() != group) continue;
    text += help_entry(*help, columns);
    has_help = true;
  }
  return has_help ? text : text + help_entry(*help, columns);
}

std::string help_of(const CLI::App& app, std::size_t columns, std::string_view usage) {
  const std::string subcommands = subcommands_help(app, columns);
  std::string text = usage.empty() ? usage_of(app) : fmt::format("{}\n", usage);
  text = wrapped(text + "  " + app.get_description() + "\n\n", columns);
  if (!subcommands.empty()) text += "subcommands\n" + subcommands + '\n';
  text += flags_help(app, columns);
  const std::string footer = app.get_footer();
  return footer.empty() ? text : text + '\n' + wrapped(footer, columns);
}

}  // namespace dtrain::base
