// The arguments of dtrain and dtrun, by CLI11.
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

/// Gives `app`, and the subcommands that it gets later, --help and -h; of repeated flags the last
/// one wins.
void set_up_parser(CLI::App& app);

/// Has `app` parse the arguments. Words of a flag may be joined by _ as well, "--flag=" gives an
/// empty value, and the value of a flag does not begin with -- unless it follows "=". A switch
/// takes "on", "off" and the like, and no value if it is to disable_flag_override(). What no flag takes is left
/// in app.remaining(true) for as_typed(), perhaps behind a "--"; then required flags may be missing.
///
/// Throws: CLI::CallForHelp if --help is among them; Error{usage}, which begins with the name of the
///         subcommand, for a missing value or flag and for values that an option refuses.
void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

/// "--batch_size" as "--batch-size", and mpirun's "-np" as "--np".
[[nodiscard]] std::string spelled_as_ours(std::string flag);

/// A word of app.remaining() as the arguments have it.
[[nodiscard]] std::string as_typed(const std::string& word);

/// All subcommands of `app`, and the names of its flags.
[[nodiscard]] std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
[[nodiscard]] std::vector<std::string> flags_of(const CLI::App& app);

/// ": did you mean NAME?" of the nearest name, or nothing.
[[nodiscard]] std::string nearest_advice(std::string_view word,
                                         const std::vector<std::string>& names);

/// The subcommand that the arguments named, or `app`.
[[nodiscard]] const CLI::App& chosen_command(const CLI::App& app);

/// "dtrain checkpoint list".
[[nodiscard]] std::string command_path(const CLI::App& app);

/// `text` with lines of at most `columns` characters, broken between words. The lines after a break
/// are indented by `indent`, or as far as their line is.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t columns,
                                  std::size_t indent = 0);

/// "  --flag VALUE   text", the text wrapped beside the flag.
[[nodiscard]] std::string help_entry(std::string_view flag, std::string_view text,
                                     std::size_t columns);
[[nodiscard]] std::string help_entry(const CLI::Option& option, std::size_t columns);

/// The help of `app`: its usage, description, subcommands, flags by group, and footer. An empty
/// `usage` stands for the subcommand's name, words and required flags.
[[nodiscard]] std::string help_of(const CLI::App& app, std::size_t columns,
                                  std::string_view usage = {});
/// Its parts: a line for each subcommand; the flags by group, --help at the end of its own.
[[nodiscard]] std::string subcommands_help(const CLI::App& app, std::size_t columns);
[[nodiscard]] std::string flags_help(const CLI::App& app, std::size_t columns);

}  // namespace dtrain::base
