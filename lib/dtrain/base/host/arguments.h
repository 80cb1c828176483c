// Parses the command lines of dtrain and dtrun with CLI11, and formats their help.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace dtrain::base {

/// Adds --help and -h to `app` and to subcommands added later; the last of repeated flags wins.
void set_up_parser(CLI::App& app);

/// Parses the arguments with `app`. Flags may be written with _ for -; "--flag=" gives an empty
/// value; a value may begin with -- only after "=". A switch accepts "on", "off" and the like,
/// unless it has disable_flag_override(). Unrecognised words stay in app.remaining(true), possibly
/// after a "--"; as_typed() restores them. If there are any, missing required flags are not
/// reported.
///
/// Throws: CLI::CallForHelp for --help; Error{usage}, beginning with the subcommand's name, for a
///         missing value or flag or an invalid value.
void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

/// Normalises a flag: "--batch_size" to "--batch-size", and mpirun's "-np" to "--np".
[[nodiscard]] std::string canonical_flag(std::string flag);

/// Converts a word of app.remaining() back to what the user typed.
[[nodiscard]] std::string as_typed(const std::string& word);

/// All subcommands of `app`, and the names of its flags.
[[nodiscard]] std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
[[nodiscard]] std::vector<std::string> flags_of(const CLI::App& app);

/// ": did you mean NAME?" with the nearest name; empty if none is near.
[[nodiscard]] std::string nearest_advice(std::string_view word,
                                         const std::vector<std::string>& names);

/// The parsed subcommand, or `app` if there was none.
[[nodiscard]] const CLI::App& chosen_command(const CLI::App& app);

/// "dtrain checkpoint list".
[[nodiscard]] std::string command_path(const CLI::App& app);

/// Wraps `text` at `columns` characters, between words. Continuation lines are indented by `indent`
/// columns, or like the line's own start if that is more.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t columns,
                                  std::size_t indent = 0);

/// "  --flag VALUE   text", with the text wrapped in its own column.
[[nodiscard]] std::string help_entry(std::string_view flag, std::string_view text,
                                     std::size_t columns);
[[nodiscard]] std::string help_entry(const CLI::Option& option, std::size_t columns);

/// The help of `app`: usage, description, subcommands, flags by group, and footer. An empty `usage`
/// is replaced by the subcommand's name, arguments and required flags.
[[nodiscard]] std::string help_of(const CLI::App& app, std::size_t columns,
                                  std::string_view usage = {});
/// Parts of the help: a line for each subcommand; the flags by group, --help last in its group.
[[nodiscard]] std::string subcommands_help(const CLI::App& app, std::size_t columns);
[[nodiscard]] std::string flags_help(const CLI::App& app, std::size_t columns);

}  // namespace dtrain::base
