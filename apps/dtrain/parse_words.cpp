#include "parse_words.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/nearest.h"
#include "dtrain/base/number.h"
#include "dtrain/config/command_line.h"

namespace dtrain::app {
namespace {

// ": did you mean --output?", or where the flags are shown.
std::string advice_for(const CLI::App& app, const std::string& word, std::string_view help) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string advice = base::did_you_mean(base::nearest(word, known));
  return advice.empty() ? fmt::format("; {} shows the flags", help) : advice;
}

}  // namespace

CLI::Option* add_count(CLI::App& app, const std::string& flag,
                       std::function<void(std::int64_t)> take) {
  return app.add_option_function<std::string>(
      flag, [flag, take = std::move(take)](const std::string& text) {
        const auto count = base::whole_number_in<std::int64_t>(text);
        if (!count) {
          base::fail(base::ErrorKind::usage, "{}: found \"{}\", but it must be a whole number",
                     flag, text);
        }
        take(*count);
      });
}

void parse_words(CLI::App& app, const Arguments& arguments, std::string_view name,
                 std::string_view help) {
  Arguments words;  // the last one first, as the parser takes them
  for (auto word = arguments.rbegin(); word != arguments.rend(); ++word) {
    words.push_back(config::with_dashes(app, *word));
  }
  try {
    app.parse(words);
  } catch (const CLI::ExtrasError& error) {
    const std::string word = app.remaining().empty() ? error.what() : app.remaining().front();
    base::fail(base::ErrorKind::usage, "{}: {} {}{}", name,
               word.starts_with('-') ? "unknown flag" : "unexpected word", word,
               advice_for(app, word, help));
  } catch (const CLI::ArgumentMismatch&) {
    // Only the last word can lack its value: any other would take the next word.
    base::fail(base::ErrorKind::usage, "{}: {} needs a value; {} shows the flags", name,
               arguments.empty() ? "it" : arguments.back(), help);
  } catch (const CLI::Error& error) {
    base::fail(base::ErrorKind::usage, "{}: {}; {} shows the flags", name, error.what(), help);
  }
}

}  // namespace dtrain::app
