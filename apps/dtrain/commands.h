// Parses dtrain's command line and runs the subcommand that it names; declares the subcommands.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dtrain/base/host/process.h"
#include "dtrain/config/input/command_line.h"

namespace CLI {
class App;
}

namespace dtrain::app {

/// The command-line arguments without the program's name.
using Arguments = std::vector<std::string>;

/// Parses the arguments and runs the subcommand that they name (`train` if they name none). Returns
/// the exit status; errors are thrown.
[[nodiscard]] int run(const Arguments& arguments);

/// The action selected by the parsed arguments. Returns the exit status; errors are thrown.
using Action = std::function<int()>;

// Subcommands whose flags are settings.
[[nodiscard]] int run_train(const config::CommandLine& command_line);
[[nodiscard]] int run_generate(const config::CommandLine& command_line);
[[nodiscard]] int run_evaluate(const config::CommandLine& command_line);
[[nodiscard]] int run_verify(const config::CommandLine& command_line);
[[nodiscard]] int run_doctor(const config::CommandLine& command_line);
[[nodiscard]] int run_plan(const config::CommandLine& command_line);
[[nodiscard]] int run_baseline(const config::CommandLine& command_line);
[[nodiscard]] int export_checkpoint(const config::CommandLine& command_line);
[[nodiscard]] int import_checkpoint(const config::CommandLine& command_line);

// Each adds subcommands to `parent`; the one selected by the arguments sets `action`.
void add_data_tools(CLI::App& parent, Action& action);
void add_checkpoint_tools(CLI::App& parent, Action& action);
void add_report(CLI::App& parent, Action& action);
void add_schedule(CLI::App& parent, Action& action);
void add_completion(CLI::App& parent, Action& action);

using base::print;

}  // namespace dtrain::app
