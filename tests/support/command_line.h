// Parses the flags of a command as the front end does.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "dtrain/base/arguments.h"
#include "dtrain/config/advice.h"
#include "dtrain/config/command_line.h"

namespace dtrain::config {

/// Throws: Error{usage} as parse_arguments, refuse_unknown, parsed_settings and with_deepspeed.
[[nodiscard]] inline CommandLine parse_command_line(Command command,
                                                    const std::vector<std::string>& arguments) {
  CLI::App app("", fmt::format("dtrain {}", name_of(command)));
  base::set_up_parser(app);
  add_settings(app, command);
  base::parse_arguments(app, arguments);
  refuse_unknown(app, command, arguments);
  return with_deepspeed(parsed_settings(app, command));
}

}  // namespace dtrain::config
