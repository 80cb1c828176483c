// Prints --help.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace dtrain::app {

/// Prints the help of a subcommand once for all ranks. That of dtrain itself, and of train, is an
/// overview.
void print_help(const CLI::App& app);

/// Prints to standard error what `dtrain` is without arguments: usage, the most used flags and the
/// subcommands.
void print_usage(const CLI::App& dtrain);

/// The width of help: that of the terminal behind a descriptor, at most 100.
[[nodiscard]] std::size_t help_columns(int descriptor);

}  // namespace dtrain::app
