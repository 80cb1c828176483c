// Steps that the ranks of one machine take together before they can communicate.
#pragma once

#include <functional>
#include <string_view>

namespace dtrain::app {

/// Has one rank say that a signal has stopped the command. rest: as base::print_on_stop_signal.
void tell_stops_on_one_rank(const char* rest);

/// Prints what all ranks would print alike: under dtrun on rank 0 alone, as it is.
///
/// Throws: as base::print.
void print_once(std::string_view text);

/// As base::report_current_exception, but the ranks of a machine print an error that all of them
/// meet once: the first of them prints at once, the others wait for the launcher to end them and
/// print only if it does not, for then the error is theirs alone. Under dtrun all tell it, and it
/// prints once what all tell. Call inside a catch block.
[[nodiscard]] int report_on_one_rank();

/// Fails in a job of several ranks, each of which would do all the work of `command`.
void require_one_process(std::string_view command);

/// Runs a check that one rank makes for all: what it throws is every rank's error.
void check_for_all_ranks(const std::function<void()>& check);

}  // namespace dtrain::app
