#include "parse_words.h"

#include <CLI/CLI.hpp>

#include "dtrain/base/error.h"
#include "dtrain/config/command_line.h"

namespace dtrain::app {

void parse_words(CLI::App& app, const Arguments& arguments, std::string_view name,
                 std::string_view help) {
  Arguments words;  // the last one first, as the parser takes them
  for (auto word = arguments.rbegin(); word != arguments.rend(); ++word) {
    words.push_back(config::with_dashes(app, *word));
  }
  try {
    app.parse(words);
  } catch (const CLI::Error& error) {
    base::fail(base::ErrorKind::usage, "{}: {}; {} shows the flags", name, error.what(), help);
  }
}

}  // namespace dtrain::app
