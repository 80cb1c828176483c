// Arguments of subcommands that take no settings.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "commands.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dtrain::app {

/// Has `app` parse the arguments. As for settings, words of a flag may be joined by _.
///
/// name:   of the command, for errors. help: the command that shows its flags.
/// Throws: Error{usage} for whatever the parser does not take.
void parse_words(CLI::App& app, const Arguments& arguments, std::string_view name,
                 std::string_view help);

/// Adds a flag whose value is a whole number, in any notation (1e4): parsing hands it to `take`.
CLI::Option* add_count(CLI::App& app, const std::string& flag,
                       std::function<void(std::int64_t)> take);

}  // namespace dtrain::app
