// Fits texts that are laid out for 100 columns to a narrower terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dtrain::app {

/// Breaks lines of more than `columns` characters between words. The rest of a line goes below
/// where its text begins, which is the second column in "  --flag VALUE   text", and flows on into
/// the following lines that are indented as far.
[[nodiscard]] std::string fitted_text(std::string_view text, std::size_t columns);

/// Prints a text of --help once for all ranks: fitted to the terminal, else as it is.
void print_help(std::string_view text);
/// Prints a usage text to standard error, fitted likewise.
void print_usage(std::string_view text);

}  // namespace dtrain::app
