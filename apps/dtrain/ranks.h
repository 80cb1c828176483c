// Output, errors and checks that the ranks of a job must coordinate before they are connected.
#pragma once

#include <functional>
#include <string_view>

namespace dtrain::app {

/// Makes rank 0 alone print that a signal stopped the command. rest: the end of that line, as for
/// base::print_on_stop_signal.
void report_stops_on_one_rank(const char* rest);

/// Prints text that is the same on all ranks. Under dtrun only rank 0 prints it, without a prefix.
///
/// Throws: as base::print.
void print_once(std::string_view text);

/// As base::report_current_exception, but prints an error of all ranks only once per machine: local
/// rank 0 prints it immediately; the others wait for the launcher to end them and print only if it
/// does not, since then the error is theirs alone. Under dtrun all ranks report the error, and dtrun
/// removes duplicates. Call inside a catch block.
[[nodiscard]] int report_error_once();

/// Throws: Error{usage} in a job of several ranks, each of which would repeat the whole command.
void require_one_process(std::string_view command);

/// Runs a check on behalf of all ranks; its error is reported as one of all ranks.
void check_for_all_ranks(const std::function<void()>& check);

}  // namespace dtrain::app
