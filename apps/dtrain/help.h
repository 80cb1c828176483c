// Texts of --help.
#pragma once

#include <string>

#include "dtrain/config/schema.h"

namespace dtrain::app {

/// The text of `dtrain --help`: the subcommands, and the flags of `train`.
[[nodiscard]] std::string overview_help();
[[nodiscard]] std::string command_help(config::Command command);
[[nodiscard]] std::string data_help();
[[nodiscard]] std::string checkpoint_help();
[[nodiscard]] std::string schedule_help();
[[nodiscard]] std::string settings_help();

}  // namespace dtrain::app
