// Helpers that add subcommands and their flags to the parser.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/base/text/number.h"

namespace dtrain::app {

/// Adds a subcommand to `parent`: add(app, options) adds its flags, which fill `options`; if the
/// arguments select it, run(options) becomes the action.
template <typename Options>
CLI::App& add_tool(CLI::App& parent, const std::string& name, const std::string& description,
                   Action& action, void (*add)(CLI::App&, Options&), int (*run)(const Options&)) {
  CLI::App& app = *parent.add_subcommand(name, description);
  const auto options = std::make_shared<Options>();
  add(app, *options);
  app.callback([&action, options, run] { action = [options, run] { return run(*options); }; });
  return app;
}

/// Rejects an empty value, as from a script's unset variable. advice: "name a file".
inline void require_value(CLI::Option& option, const std::string& advice) {
  option.check([advice](const std::string& text) {
    return text.empty() ? "is empty: " + advice : std::string();
  });
}

/// Adds a flag whose value is an integer from `lowest` to `highest`; 1e4 is accepted too.
inline CLI::Option* add_number(CLI::App& app, const std::string& flag, std::int64_t& value,
                               std::int64_t lowest, std::int64_t highest) {
  const auto take = [flag, &value, lowest, highest](const std::string& text) {
    const auto number = base::whole_number_in<std::int64_t>(text);
    if (!number || *number < lowest || *number > highest) {
      const auto found = fmt::format("found {}, but it must be a whole number from {} to {}", text,
                                     lowest, highest);
      throw CLI::ValidationError(flag, found);
    }
    value = *number;
  };
  return app.add_option_function<std::string>(flag, take)->type_name("N");
}

}  // namespace dtrain::app
