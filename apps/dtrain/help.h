// Texts of --help.
#pragma once

#include <string>
#include <string_view>

#include "dtrain/config/schema.h"

namespace dtrain::app {

/// True for the flags that ask for help.
[[nodiscard]] inline bool is_help(std::string_view word) {
  return word == "--help" || word == "-h";
}

/// The text of `dtrain` without arguments: usage, the most used flags and the subcommands.
[[nodiscard]] std::string usage_help();
/// The text of `dtrain --help`: usage, subcommands and all flags of `train`.
[[nodiscard]] std::string overview_help();
[[nodiscard]] std::string command_help(config::Command command);
[[nodiscard]] std::string data_help();
[[nodiscard]] std::string checkpoint_help();
[[nodiscard]] std::string completion_help();
[[nodiscard]] std::string report_help();
[[nodiscard]] std::string schedule_help();
[[nodiscard]] std::string settings_help();

}  // namespace dtrain::app
