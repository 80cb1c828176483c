// Adds subcommands to the parser.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "commands.h"
#include "dtrain/base/error.h"
#include "dtrain/base/number.h"

namespace dtrain::app {

/// Adds a subcommand to `parent`: add(app, options) adds its flags, which fill `options`, and
/// run(options) is the action of arguments that name it.
template <typename Options>
CLI::App& add_tool(CLI::App& parent, const std::string& name, const std::string& description,
                   Action& action, void (*add)(CLI::App&, Options&), int (*run)(const Options&)) {
  CLI::App& app = *parent.add_subcommand(name, description);
  const auto options = std::make_shared<Options>();
  add(app, *options);
  app.callback([&action, options, run] { action = [options, run] { return run(*options); }; });
  return app;
}

/// Adds a flag whose value is a whole number from `lowest` to `highest`, in any notation (1e4).
inline CLI::Option* add_number(CLI::App& app, const std::string& flag, std::int64_t& value,
                               std::int64_t lowest, std::int64_t highest) {
  const auto take = [flag, &value, lowest, highest](const std::string& text) {
    const auto number = base::whole_number_in<std::int64_t>(text);
    if (!number || *number < lowest || *number > highest) {
      base::fail(base::ErrorKind::usage, "{}: found {}, but it must be {} to {}, a whole number",
                 flag, text, lowest, highest);
    }
    value = *number;
  };
  return app.add_option_function<std::string>(flag, take)->type_name("N");
}

}  // namespace dtrain::app
